"""Finds the tokens that are matched as whole texts, before a text is cut into words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from samovar.errors import CheckpointError


class SpecialSplitter:
    """Cuts a text at the tokens of a table: leftmost match first, the longest among those.

    tokens: text → id.  An empty table leaves every text whole.
    """

    __slots__ = ("_pattern", "_tokens")

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = dict(tokens)
        self._pattern = _longest_first(self._tokens) if self._tokens else None

    def split(self, text: str) -> Iterator[str | int]:
        """Pieces of plain text (never empty) and token ids, in their order."""
        start = 0
        if self._pattern is not None:
            for match in self._pattern.finditer(text):
                if match.start() > start:
                    yield text[start : match.start()]
                yield self._tokens[match.group()]
                start = match.end()
        if start < len(text):
            yield text[start:]

    def break_up(self, text: str, mark: str) -> str:
        """`text` with `mark` after the first character of each token's text.

        Repeated until none is left, so that overlapping token texts are broken as well.
        """
        if self._pattern is None:
            return text
        while self._pattern.search(text):
            text = self._pattern.sub(lambda m: m.group()[0] + mark + m.group()[1:], text)
        return text


def _longest_first(tokens: Mapping[str, int]) -> re.Pattern[str]:
    """An expression that matches any of the texts, preferring longer ones.

    Built from a tree of characters: thousands of `<unused123>` cost no more than one.
    """
    root: dict[str, dict[str, object]] = {}
    for text in tokens:
        node: dict[str, object] = root  # type: ignore[assignment]
        for character in text:
            node = node.setdefault(character, {})  # type: ignore[assignment]
        node[""] = True
    try:
        return re.compile(_expression(root))  # type: ignore[arg-type]
    except RecursionError:
        raise CheckpointError(
            "tokenizer.ggml.tokens: hundreds of special tokens are prefixes of each other"
        ) from None


def _expression(node: dict[str, object]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:
        ((character, child),) = node.items()
        prefix += re.escape(character)
        node = child  # type: ignore[assignment]
    branches = [
        re.escape(character) + _expression(child)  # type: ignore[arg-type]
        for character, child in node.items()
        if character
    ]
    if not branches:
        return prefix
    optional = "?" if "" in node else ""
    return f"{prefix}(?:{'|'.join(branches)}){optional}"
