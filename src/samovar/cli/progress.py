"""Progress of long work on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Yields a function (what, bytes so far, bytes in all or None) that draws a bar, or None.

    The bar appears with the first call: where nothing takes long, nothing is drawn.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    """A bar of rich's, made when it is first needed."""

    def __init__(self) -> None:
        self._close: Callable[[], None] | None = None
        self._draw: Callable[[str, int, int | None], None] | None = None

    def update(self, what: str, done: int, total: int | None) -> None:
        if self._draw is None:
            self._open()
        assert self._draw is not None
        self._draw(what, done, total)

    def close(self) -> None:
        if self._close is not None:
            self._close()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        tasks = {}

        def draw(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        progress.start()
        self._draw, self._close = draw, progress.stop
