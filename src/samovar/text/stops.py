"""Ends a reply before a stop string, and never lets a part of one out."""

from __future__ import annotations

import re
from collections.abc import Iterable


class StopMatcher:
    """Watches the text of one reply for stop strings, however it is cut into pieces.

    The reply ends where the first stop string is complete (the longest, if several end there),
    and its text ends before that string.  Text that may be the beginning of a stop string is
    held back until that is settled.
    """

    __slots__ = ("_first", "_held", "_longest", "_stopped", "_stops")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._longest = max(map(len, self._stops), default=0)
        starts = "".join(sorted({re.escape(stop[0]) for stop in self._stops}))
        self._first = re.compile(f"[{starts}]") if starts else None
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to send now, and whether a stop string was found.

        After a stop string nothing more comes out.
        """
        if self._first is None:
            return text, False
        if self._stopped:
            return "", True
        text = self._held + text
        end = len(text) + 1
        start = 0
        for stop in self._stops:
            found = text.find(stop)
            if found >= 0 and (found + len(stop), found) < (end, start):
                start, end = found, found + len(stop)
        if end <= len(text):
            self._stopped = True
            self._held = ""
            return text[:start], True
        keep = self._beginning_of_stop(text)
        self._held = text[keep:]
        return text[:keep], False

    def finish(self) -> str:
        """The text still held back, when the reply ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning_of_stop(self, text: str) -> int:
        """Where the longest end of `text` starts that begins a stop string, or its length."""
        assert self._first is not None
        at = max(0, len(text) - self._longest + 1)
        while match := self._first.search(text, at):
            at = match.start()
            rest = text[at:]
            if any(stop.startswith(rest) for stop in self._stops):
                return at
            at += 1
        return len(text)
