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

    def breaks(self, text: str, outside: bytes) -> list[int]:
        """Places at which a mark leaves no token of which any character came from outside.

        outside: one byte for each character, 1 where it came from outside.  A token that the
        text holds wholly from within is not touched.  Tokens have two characters or more.
        """
        places: list[int] = []
        match = self._pattern.search(text) if self._pattern is not None else None
        while match is not None:
            start, end = match.span()
            cut = start + 1 if outside[start] else outside.find(1, start, end)
            if cut > 0:
                places.append(cut)
            match = match.re.search(text, cut if cut > 0 else start + 1)
        return places


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
