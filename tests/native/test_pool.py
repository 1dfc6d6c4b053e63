"""Pools: any number of threads gives the same result, also far more threads than cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from native_programs import Decoder, run
from samovar import _native as native

TOKENS = list(range(40))


def last_logits(threads: int) -> bytes:
    runner = Decoder().load(threads=threads)
    for start in range(0, 40, 8):
        run(runner, [(TOKENS[start : start + 8], start, [3, 1])])
    return runner.logits[0].tobytes()


def test_more_threads_than_cores_change_nothing() -> None:
    alone = last_logits(1)
    assert last_logits(2) == alone
    assert last_logits(4 * native.usable_cores() + 1) == alone


def test_several_pools_work_at_once() -> None:
    with ThreadPoolExecutor(3) as executor:
        results = list(executor.map(last_logits, [1, 2, 3]))
    assert len(set(results)) == 1


def test_runners_share_a_pool_from_several_threads() -> None:
    pool, arena = native.Pool(2), native.Arena()
    raw = np.arange(64 * 64, dtype=np.float32).view(np.uint8)

    def pack(_: int) -> bytes:
        weight = native.Weight.pack([raw], ["F32"], [64], 64, arena=arena, pool=pool)
        return weight.dequantize().tobytes()

    with ThreadPoolExecutor(4) as executor:
        assert set(executor.map(pack, range(200))) == {raw.tobytes()}


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.timeout(300, method="thread")  # a team that lost an item hangs in native code
def test_jobs_follow_each_other_at_once(threads: int) -> None:
    """A worker that ends a job may still be busy with its end when the next one begins."""
    pool = native.Pool(threads)
    for items in (1, 2, 7):
        assert pool.add_up(1_000_000, items) == 1_000_000 * items * (items + 1) // 2


@pytest.mark.parametrize("threads", [0, -1, 1 << 20])
def test_a_number_of_threads_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads: expected 1 to"):
        native.Pool(threads)


def test_denormals_still_work_in_python_after_a_step() -> None:
    last_logits(1)
    smallest = np.float32(1e-45)
    assert smallest * np.float32(2) > 0


def own_threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


@contextmanager
def threads_made_here(affinity: set[int]) -> Iterator[None]:
    """This thread runs on these cores only, and so do the threads that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, affinity)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux only")
def test_workers_that_get_no_time_stall_nobody() -> None:
    """All on one core, the workers only where nobody else wants it: the caller does the work."""
    alone = last_logits(1)
    with threads_made_here({min(os.sched_getaffinity(0))}):
        before = own_threads()
        runner = Decoder().load(threads=5)
        workers = own_threads() - before
        assert len(workers) == 4
        for worker in workers:
            os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))
        for start in range(0, 40, 8):
            run(runner, [(TOKENS[start : start + 8], start, [3, 1])])
        assert runner.logits[0].tobytes() == alone


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux only")
def test_a_team_that_is_crowded_after_its_start_still_works() -> None:
    """Made for all cores, then put on one: what was planned as spinning must end in sleeping."""
    alone = last_logits(1)
    before = own_threads()
    runner = Decoder().load(threads=native.usable_cores() + 1)
    core = {min(os.sched_getaffinity(0))}
    with threads_made_here(core):
        for worker in own_threads() - before:
            os.sched_setaffinity(worker, core)
        for start in range(0, 40, 8):
            run(runner, [(TOKENS[start : start + 8], start, [3, 1])])
    assert runner.logits[0].tobytes() == alone


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no schedstat")
def test_an_idle_team_uses_no_cpu() -> None:
    before = own_threads()
    runner = Decoder().load(threads=3)
    run(runner, [(TOKENS[:8], 0, [0])])
    workers = own_threads() - before
    assert len(workers) == 2

    def state(worker: int) -> str:
        return Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2].split()[0]

    def used_ns(worker: int) -> str:
        return Path(f"/proc/self/task/{worker}/schedstat").read_text().split()[0]

    while any(state(worker) != "S" for worker in workers):
        os.sched_yield()
    used = [used_ns(worker) for worker in workers]
    native.Weight.pack(  # this thread is busy for a while, with a team of its own
        [np.zeros(1 << 24, np.uint8)],
        ["F32"],
        [1024],
        4096,
        arena=native.Arena(),
        pool=native.Pool(1),
    )
    assert [used_ns(worker) for worker in workers] == used
    run(runner, [(TOKENS[8:16], 8, [0])])
