"""Progress of long work on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samovar.log import LOGGER

_WIDTH_BESIDE = 52  # of everything in a bar but its text


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields a function (what, bytes so far, bytes in all or None) that shows how far work is.

    On a terminal that is a bar, which is gone in the end; elsewhere it is one line for whatever
    is called before its first byte. Where nothing takes long, nothing is shown.
    """
    if not sys.stderr.isatty():
        yield _lines(lambda line: print(line, file=sys.stderr, flush=True))
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.close()


@contextmanager
def progress_log() -> Iterator[Callable[[str, int, int | None], None]]:
    """The same for a program whose stderr holds nothing but log lines."""
    yield _lines(LOGGER.info)


def _lines(write: Callable[[str], None]) -> Callable[[str, int, int | None], None]:
    told: set[str] = set()

    def tell(what: str, done: int, total: int | None) -> None:
        if done == 0 and what not in told:
            told.add(what)
            size = "" if total is None else f" ({total / 1e6:.0f} MB)"
            write(f"{what}{size}")

    return tell


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
            TaskID,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.table import Column

        console = Console(stderr=True)
        room = max(10, console.width - _WIDTH_BESIDE)
        progress = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=room),
            ),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        tasks: dict[str, TaskID] = {}

        def draw(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total, completed=done)
            for name, task in tasks.items():  # one bar: what is under way
                progress.update(task, visible=name == what)
            progress.update(tasks[what], completed=done, total=total)

        progress.start()
        self._draw, self._close = draw, progress.stop
