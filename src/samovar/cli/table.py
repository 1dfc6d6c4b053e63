"""Tables on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNBOUNDED = 1_000_000  # columns


def print_table(table: Table) -> None:
    """Writes a table with every cell whole, each row on a line of its own.

    A terminal that is too narrow wraps the lines itself, and what is copied from it stays whole.
    """
    from rich.console import Console

    Console(highlight=False, markup=False, soft_wrap=True, width=_UNBOUNDED).print(table)
