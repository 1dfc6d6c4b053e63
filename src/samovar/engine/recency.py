"""An order of keys by their last use."""

from __future__ import annotations


class Recency:
    """Keys, each once, from the one used longest ago to the latest.

    A ring of links both ways that begins and ends at None: every change takes the same time.
    """

    def __init__(self) -> None:
        self._older: dict[bytes | None, bytes | None] = {None: None}
        self._newer: dict[bytes | None, bytes | None] = {None: None}

    @property
    def oldest(self) -> bytes | None:
        return self._newer[None]

    def put(self, key: bytes, before: bytes | None = None) -> None:
        """Makes a key, new or not, the latest, or the one right before another."""
        self.discard(key)
        self._link(self._older[before], key)
        self._link(key, before)

    def discard(self, key: bytes) -> None:
        if key in self._newer:
            self._link(self._older.pop(key), self._newer.pop(key))

    def _link(self, older: bytes | None, newer: bytes | None) -> None:
        self._newer[older] = newer
        self._older[newer] = older
