"""Reading and keeping blocks on disk takes nobody else's time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from disk_cases import PROMPT, REQUEST, block_files, count_reads, run, settled, short, start, step
from engine_cases import replies
from samovar.engine import disk
from samovar.engine.blocks import BLOCK_TOKENS, BlockPool
from samovar.engine.prefix import PrefixTree


def test_reading_from_disk_keeps_nobody_waiting(warm: Path, expected: list[int]) -> None:
    engine = start(warm, max_step_ms=0)  # so that one block is all that there is time for
    reads = count_reads(engine)
    engine.submit(replace(short(9), max_tokens=60))
    while not step(engine):
        pass
    engine.submit(replace(REQUEST, id="a"))
    engine.submit(replace(REQUEST, id="b"))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    while len(tokens["b"]) < 40:
        before = len(reads)
        gained = step(engine)
        assert len(reads) - before <= 1
        assert gained["9"] or len(reads) == 5
        for name in tokens:
            tokens[name] += gained.get(name, [])
        engine.check_blocks()
    assert len(reads) == 5  # what one has read the other finds in memory
    assert tokens == {"a": expected, "b": expected}


def test_alone_it_reads_step_by_step_as_well(warm: Path, expected: list[int]) -> None:
    engine = start(warm, max_step_ms=0)
    reads = count_reads(engine)
    engine.submit(REQUEST)
    told: list[int] = []
    for number in range(1, 5):
        # Not None: there is more to do.  What the last step made does not wait for the disk.
        assert engine.step(lambda: told.append(len(reads))) == []
        assert len(reads) == number
    assert told == [0, 1, 2, 3]
    engine.abort(REQUEST.id)
    engine.check_blocks()
    assert engine.step() is None
    assert run(engine) == (expected, 5 * BLOCK_TOKENS)
    assert len(reads) == 5  # what was read is kept


def test_a_prompt_without_room_reads_and_displaces_nothing(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(warm, num_blocks=16)
    reads = count_reads(engine)
    replies(engine, [short(1, num_blocks=2)])
    engine.submit(replace(REQUEST, id="2", prompt=(2, *PROMPT, *PROMPT)))
    while not step(engine):
        pass
    cached = engine.stats().blocks_cached
    assert cached
    # Of one that waits all is on disk, of the other a part is in memory as well.
    assert engine._disk is not None
    used: list[object] = []
    for name in ("store", "touch", "mark_used"):
        monkeypatch.setattr(engine._disk, name, lambda *what: used.append(what))
    for waiting in (REQUEST, replace(REQUEST, id="3", prompt=(1, *PROMPT))):
        engine.submit(waiting)
        for _ in range(3):
            step(engine)
            assert engine.stats().waiting == 1
            assert engine.stats().blocks_cached == cached
            engine.check_blocks()
        engine.abort(waiting.id)
    assert not reads
    assert not used


def test_time_spent_on_reading_is_no_cost_of_the_prompt(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(warm)
    settled(engine, short(1, num_blocks=8))
    budget = engine._pace.budget(1)
    real, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    assert engine._disk is not None
    load = engine._disk.load

    def slow(*what: Any) -> bool:
        nonlocal passed
        passed += 60.0
        return load(*what)

    engine._disk.load = slow  # type: ignore[method-assign]
    assert replies(engine, [REQUEST])
    assert passed == 5 * 60
    assert engine._pace.budget(1) > budget / 2


def test_only_bytes_are_copied_on_the_engines_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    digest = disk._digest

    def noting(*what: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return digest(*what)

    monkeypatch.setattr(disk, "_digest", noting)
    run(start(tmp_path))
    assert set(threads) == {"samovar-disk"}


class FakeCache:
    """Blocks of a few bytes."""

    block_bytes = 8

    def read_block(self, block: int) -> bytes:
        return bytes(self.block_bytes)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the package a call runs on this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "samovar" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("room", [1 << 20, 60 * 200], ids=["much room", "less than it needs"])
def test_the_work_for_a_block_does_not_grow_with_what_is_before_it(
    tmp_path: Path, room: int
) -> None:
    tier = disk.DiskTier(tmp_path, "model", room, FakeCache())  # type: ignore[arg-type]
    tree = PrefixTree(BlockPool(400), tier)
    path = [tree.root("")]
    tokens = [(i, *range(BLOCK_TOKENS - 1)) for i in range(350)]

    def grow(first: int, last: int) -> None:
        for each in tokens[first:last]:
            path.append(tree.insert(path[-1], each, *tree.take(1)))

    grow(0, 20)
    early = lines_run(lambda: grow(20, 40))
    grow(40, 330)
    assert lines_run(lambda: grow(330, 350)) < early * 1.5
    tree.release(path[1:])
    tier.close()
    size = block_files(tmp_path)[0].stat().st_size
    assert len(block_files(tmp_path)) == min(350, room // size)
    again = PrefixTree(BlockPool(400), disk.DiskTier(tmp_path, "model", room, FakeCache()))  # type: ignore[arg-type]
    assert again.is_on_disk(again.root(""), tokens[0], 0)
