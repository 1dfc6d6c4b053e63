"""What rendering a chat template may cost: steps, and the sizes of texts and values."""

from __future__ import annotations

import threading
from typing import Any

MAX_OUTPUT_CHARS = 32 << 20
# A step is one turn of a loop; a conversation of a thousand messages takes some ten thousand.
MAX_STEPS = 1_000_000
_MAX_DEPTH = 200  # of lists and mappings in each other


class OverBudget(Exception):
    """The template did more than rendering a conversation can need."""


class Budget(threading.local):
    """Steps that the rendering on this thread may still take."""

    steps = MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise OverBudget(f"it takes more than {MAX_STEPS} steps")

    def spend_size(self, size: int) -> None:
        if size > MAX_OUTPUT_CHARS:
            raise OverBudget(f"it makes a value of more than {MAX_OUTPUT_CHARS} characters")
        self.spend(size >> 10)

    def spend_tree(self, value: Any) -> None:
        """Pays for a walk through a value; what occurs in it twice is walked twice."""
        size = _tree_size(value, {}, 0)
        if size > MAX_OUTPUT_CHARS:
            raise OverBudget("it walks through a value of millions of parts")
        self.spend(size >> 4)


def _tree_size(value: Any, known: dict[int, int], depth: int) -> int:
    if isinstance(value, str):
        return 1 + (len(value) >> 6)
    if not isinstance(value, list | tuple | dict):
        return 1
    size = known.get(id(value))
    if size is None:
        if depth == _MAX_DEPTH:
            raise OverBudget(f"its values nest more than {_MAX_DEPTH} times")
        items = [*value, *value.values()] if isinstance(value, dict) else value
        size = known[id(value)] = 1 + sum(_tree_size(item, known, depth + 1) for item in items)
    return size
