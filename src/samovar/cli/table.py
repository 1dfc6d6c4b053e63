"""Tables on stdout."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNBOUNDED = 1_000_000  # columns


def print_table(table: Table) -> None:
    """Writes a table with every cell whole, each row on a line of its own.

    A terminal that is too narrow wraps the lines itself, and what is copied from it stays whole.
    """
    from rich.console import Console

    drawn = io.StringIO()
    Console(file=drawn, force_terminal=False, markup=False, width=_UNBOUNDED).print(table)
    # rich fills the last column up, and one long line would make all others wrap.
    for line in drawn.getvalue().removesuffix("\n").split("\n"):
        print(line.rstrip())
