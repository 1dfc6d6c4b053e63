"""Pools: any number of threads gives the same result, also far more threads than cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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


@pytest.mark.parametrize("threads", [0, -1, 1 << 20])
def test_a_number_of_threads_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads: expected 1 to"):
        native.Pool(threads)


def test_denormals_still_work_in_python_after_a_step() -> None:
    last_logits(1)
    smallest = np.float32(1e-45)
    assert smallest * np.float32(2) > 0
