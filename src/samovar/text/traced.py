"""Text of which every character knows whether it came from outside.

A chat template joins its own markup with what users wrote, cuts it and edits it. Each operation
keeps the origin of each character, so that afterwards a special token counts only where the
template wrote all of it. Where an operation does not show which character went where, its whole
result counts as text from outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, SupportsIndex

from jinja2 import Undefined

NONCHARACTERS = (
    *map(chr, range(0xFDD0, 0xFDF0)),
    *(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)),
)
_OUTSIDE_RUN = re.compile(b"\1+")
_PLAIN = (int, float, type(None), Undefined, GeneratorType)


class TracedText(str):
    """A string with the origin of each of its characters.

    outside: one byte for each character, 1 where it came from outside; all did by default.
    """

    __slots__ = ("_outside",)
    _outside: bytes

    def __new__(cls, text: str = "", outside: bytes | None = None) -> TracedText:
        self = super().__new__(cls, text)
        self._outside = b"\1" * len(self) if outside is None else outside
        return self

    def __str__(self) -> TracedText:
        return self

    def __add__(self, other: str) -> TracedText:
        if not isinstance(other, str) or hasattr(other, "__html__"):
            return NotImplemented
        return joined((self, other))

    def __radd__(self, other: str) -> TracedText:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> TracedText:
        return TracedText(str.__mul__(self, count), self._outside * count)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> TracedText:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            return TracedText(text, self._outside[key])
        return TracedText(text, bytes((self._outside[key],)))

    def __iter__(self) -> Iterator[TracedText]:
        for character, outside in zip(str.__iter__(self), self._outside, strict=True):
            yield TracedText(character, bytes((outside,)))

    def lstrip(self, chars: str | None = None, /) -> TracedText:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> TracedText:
        return self[: len(str.rstrip(self, chars))]

    def strip(self, chars: str | None = None, /) -> TracedText:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> TracedText:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> TracedText:
        return self[: len(str.removesuffix(self, suffix))]

    # The pieces are lists of this type, which a list of strings is declared not to allow.

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[TracedText]:  # type: ignore[override]
        return self._cut(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[TracedText]:  # type: ignore[override]
        return self._cut(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[TracedText]:  # type: ignore[override]
        lines, at = [], 0
        for line, whole in zip(
            str.splitlines(self, keepends), str.splitlines(self, True), strict=True
        ):
            lines.append(self[at : at + len(line)])
            at += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[TracedText, TracedText, TracedText]:
        head, found, tail = self._cut(str.partition(self, sep), "")
        return head, found, tail

    def rpartition(self, sep: str, /) -> tuple[TracedText, TracedText, TracedText]:
        head, found, tail = self._cut(str.rpartition(self, sep), "")
        return head, found, tail

    def _cut(self, pieces: Sequence[str], sep: str | None) -> list[TracedText]:
        """These pieces of the text; between them lies `sep`, or any white space for None."""
        found, at = [], 0
        for piece in pieces:
            if sep is None:
                at = str.index(self, piece, at)
            found.append(self[at : at + len(piece)])
            at += len(piece) + len(sep or "")
        return found


def outside_of(text: str) -> bytes:
    """One byte for each character, 1 where it came from outside."""
    return text._outside if isinstance(text, TracedText) else bytes(len(text))


def joined(parts: Iterable[str]) -> TracedText:
    """The parts as one text."""
    parts = list(parts)
    return TracedText("".join(parts), b"".join(map(outside_of, parts)))


def plain(value: Any) -> Any:
    """A text without its origins; anything else as it is."""
    return str.__str__(value) if isinstance(value, TracedText) else value


def traced(value: Any) -> Any:
    """A copy of a value made of JSON's types whose texts all came from outside."""
    if isinstance(value, str):
        return TracedText(value)
    if isinstance(value, Mapping):
        return {traced(key): traced(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [traced(item) for item in value]
    return value


def holds_outside(*values: Any) -> bool:
    """Whether text from outside is, or may be, anywhere in the values."""
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if isinstance(value, TracedText) and 1 in value._outside:
                return True
        elif isinstance(value, Mapping | list | tuple):
            if id(value) not in seen:
                seen.add(id(value))
                waiting += value
                if isinstance(value, Mapping):
                    waiting += value.values()
        elif not isinstance(value, _PLAIN):
            return True
    return False


def retraced(
    result: str, operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """`result`, which operation(*args, **kwargs) gave, with the origins of its characters.

    The operation is done once more with all texts from outside between brackets, for which two
    noncharacters stand. Without them that must give the same again; if it does not, the whole
    result counts as from outside.
    """
    if not holds_outside(args, kwargs):
        return result
    brackets = "".join([mark for mark in NONCHARACTERS if mark not in result][:2])
    try:
        bracketed = operation(
            *[_bracketed(value, brackets) for value in args],
            **{name: _bracketed(value, brackets) for name, value in kwargs.items()},
        )
    except Exception:  # whatever brackets may break
        return TracedText(result)
    if not isinstance(bracketed, str) or len(brackets) < 2:
        return TracedText(result)
    bracketed = plain(bracketed)
    parts: list[TracedText] = []
    depth = at = 0
    for match in re.finditer(f"[{brackets}]", bracketed):
        parts.append(_of_depth(bracketed[at : match.start()], depth))
        depth += 1 if match.group() == brackets[0] else -1
        at = match.end()
        if depth < 0:
            return TracedText(result)
    parts.append(_of_depth(bracketed[at:], depth))
    whole = joined(parts)
    return whole if whole == result else TracedText(result)


def _of_depth(text: str, depth: int) -> TracedText:
    return TracedText(text, (b"\1" if depth else b"\0") * len(text))


def _bracketed(value: Any, brackets: str) -> Any:
    if isinstance(value, TracedText):
        parts, at = [], 0
        for run in _OUTSIDE_RUN.finditer(value._outside):
            opened, closed = run.span()
            parts += [value[at:opened], brackets[0], value[opened:closed], brackets[1]]
            at = closed
        return "".join([*parts, value[at:]])
    if isinstance(value, dict):
        return {
            _bracketed(key, brackets): _bracketed(item, brackets) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_bracketed(item, brackets) for item in value]
    if isinstance(value, tuple):
        return tuple(_bracketed(item, brackets) for item in value)
    if isinstance(value, (str, *_PLAIN)):
        return value
    raise TypeError("an object that may hold text from outside")
