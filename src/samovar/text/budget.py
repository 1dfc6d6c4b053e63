"""What rendering a chat template may cost: steps, and the sizes of texts and values."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

MAX_OUTPUT_CHARS = 32 << 20
# A step is one turn of a loop; a conversation of a thousand messages takes some ten thousand.
MAX_STEPS = 1_000_000
# What each part of a list or mapping counts beside its text.
_PART_CHARS = 32
_MAX_DEPTH = 200  # of lists and mappings in each other

_MAX_INTEGER_BITS = 4096
# A width or precision of five digits, or one that is an argument.
_WIDE_FORMAT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*\.?(?:\d{5}|\*)|\{[^{}]*(?::[^{}]*\d{5}|\{)")
_STEPS_PER_FILTER = 4
# Filters that do not walk through a text.
_CHEAP = frozenset(("length", "count", "first", "last", "default", "d", "reverse", "attr"))
# Filters that are slow: the binary logarithm of the characters that are worth a step.
_SLOW: Mapping[str, int] = MappingProxyType(
    {
        "dictsort": 6,
        "groupby": 6,
        "sort": 6,
        "unique": 6,
        "tojson": 7,
        "forceescape": 6,
        "pprint": 2,
        "striptags": 2,
        "title": 2,
        "urlencode": 2,
        "urlize": 2,
        "wordcount": 2,
        "wordwrap": 2,
        "xmlattr": 2,
    }
)


class OverBudget(Exception):
    """The template did more than rendering a conversation can need."""


class Budget(threading.local):
    """Steps that the rendering on this thread may still take."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new rendering, with the whole budget."""
        self.steps = MAX_STEPS
        # By id: a list or mapping, its size and how deep it nests. None can be changed by a
        # template, so each is measured once; being kept here, none loses its id.
        self._measured: dict[int, tuple[object, int, int]] = {}

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise OverBudget(f"it takes more than {MAX_STEPS} steps")

    def spend_size(self, size: int) -> None:
        if size > MAX_OUTPUT_CHARS:
            raise OverBudget(f"it makes a value of more than {MAX_OUTPUT_CHARS} characters")
        self.spend(size >> 10)

    def spend_use(self, value: Any) -> None:
        """Pays for something like a comparison or a copy of a value."""
        self.spend(self.measure(value)[0] >> 12)

    def measure(self, value: Any, depth: int = 0) -> tuple[int, int]:
        """About the characters that a value takes as text, and how deep it nests.

        What occurs in it twice counts twice. Refuses what is huge, so that no value can be made
        whose text, comparison or hash takes forever.
        """
        if isinstance(value, str | bytes):
            return len(value), 0
        if not isinstance(value, list | tuple | dict):
            return len(value) if isinstance(value, range) else 1, 0
        known = self._measured.get(id(value))
        if known is None:
            self.spend(1 + (len(value) >> 1))
            if depth > _MAX_DEPTH:
                raise OverBudget(f"its values nest more than {_MAX_DEPTH} times")
            items = [*value, *value.values()] if isinstance(value, dict) else value
            size = _PART_CHARS * (1 + len(items))
            below = 0
            for item in items:
                if isinstance(item, str):
                    size += len(item)
                elif isinstance(item, list | tuple | dict):
                    of_item, nesting = self.measure(item, depth + 1)
                    size += of_item
                    below = max(below, nesting)
            if size > MAX_OUTPUT_CHARS or below >= _MAX_DEPTH:
                raise OverBudget(
                    f"it makes a value of more than {MAX_OUTPUT_CHARS} characters, "
                    f"or one that nests more than {_MAX_DEPTH} times"
                )
            known = self._measured[id(value)] = (value, size, below + 1)
        return known[1], known[2]

    def check_bits(self, bits: int) -> None:
        """Refuses an integer of so many bits if that is huge."""
        if bits > _MAX_INTEGER_BITS:
            raise OverBudget("it makes a huge number")

    def spend_text(
        self, method: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Pays for the result of a text operation before it is made; refuses a huge one."""
        numbers = [abs(a) for a in (*args, *kwargs.values()) if isinstance(a, int)]
        width = max(numbers, default=0)
        if method in ("center", "ljust", "rjust", "zfill", "batch", "slice"):
            self.spend_size(max(width, len(text)))
        elif method in ("expandtabs", "indent"):
            self.spend_size(len(text) + width * (1 + text.count("\n") + text.count("\t")))
        elif method in ("replace", "wordwrap"):
            longest = max(
                (len(a) for a in (*args, *kwargs.values()) if isinstance(a, str)), default=1
            )
            found = text.count(args[0]) if args and isinstance(args[0], str) else len(text)
            self.spend_size(len(text) + found * longest)
        elif method in ("format", "format_map"):
            if _WIDE_FORMAT.search(text):
                raise OverBudget("it formats with a huge or computed width")
            values = [*args, *kwargs.values()]
            for given in args:
                if isinstance(given, tuple | dict):
                    values += given.values() if isinstance(given, dict) else given
            sizes = (self.measure(value)[0] for value in values)
            fields = text.count("{") + text.count("%")
            self.spend_size(len(text) + fields * max(sizes, default=0))
        elif method == "translate" and args and isinstance(args[0], dict):
            longest = max((len(a) for a in args[0].values() if isinstance(a, str)), default=1)
            self.spend_size(len(text) * max(longest, 1))
        elif method == "join" and args and isinstance(args[0], list | tuple):
            self.spend_size(joined_size(text, args[0]))

    def spend_filter(
        self,
        name: str,
        value: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        by_character: bool,
    ) -> None:
        """Pays for a filter; some take the characters of a text one by one."""
        self.spend(_STEPS_PER_FILTER)
        if isinstance(value, list | tuple | dict | range):
            self.spend(len(value) >> (6 if name in _CHEAP else 2))
        if name not in _CHEAP:
            per_step = _SLOW.get(name, 10)
            for given in (value, *args, *kwargs.values()):
                self.spend(self.measure(given)[0] >> per_step)
            if isinstance(value, str) and by_character:
                self.spend(len(value))


def joined_size(separator: str, items: Iterable[Any]) -> int:
    """The characters that joining these takes, at least."""
    sizes = [len(item) if isinstance(item, str) else 8 for item in items]
    return sum(sizes) + len(separator) * len(sizes)
