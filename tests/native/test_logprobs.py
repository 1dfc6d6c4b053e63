"""Log-probabilities: those of a double softmax, the same bits everywhere, ties by the lowest id."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from native_programs import Bench, Floats, int32, run
from samovar import _native as native

VOCAB = 3001


def logits_of(rng: np.random.Generator) -> Floats:
    """Rows: peaked, flat, full of ties, all equal, rising (each logit beats those before)."""
    rows = rng.normal(size=(5, VOCAB))
    rows[0] *= 12
    rows[2] = np.rint(rows[2])
    rows[3] = -1e30
    rows[4] = np.linspace(-200, 100, VOCAB)
    return rows.astype(np.float32)


LOGITS = logits_of(np.random.default_rng(5))
ROWS = len(LOGITS)


def load(threads: int = 2, isa: str | None = None) -> native.Runner:
    bench = Bench(threads, isa=isa)
    runner = bench.finish(bench.embedding(LOGITS), VOCAB)
    run(runner, [(range(ROWS), 0, [0])], range(ROWS))
    return runner


@pytest.fixture(scope="module")
def runner() -> native.Runner:
    return load()


def expected() -> NDArray[np.float64]:
    wide = LOGITS.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_they_are_those_of_the_softmax(runner: native.Runner, top: int) -> None:
    tokens = int32([0, 17, 1500, VOCAB - 1, 2999])
    logprob, ids, values = runner.logprobs(rows=int32(range(ROWS)), tokens=tokens, top=top)
    true = expected()
    np.testing.assert_allclose(logprob, true[range(ROWS), tokens], rtol=1e-7, atol=5e-7)
    assert ids.shape == values.shape == (ROWS, top)
    for row in range(ROWS):
        order = np.lexsort([np.arange(VOCAB), -LOGITS[row]])[:top]
        np.testing.assert_array_equal(ids[row], order)
        np.testing.assert_allclose(values[row], true[row, order], rtol=1e-7, atol=5e-7)


def test_a_token_has_one_value_wherever_it_is_asked(runner: native.Runner) -> None:
    _, ids, values = runner.logprobs(rows=int32([0, 1, 2]), tokens=int32([0, 0, 0]), top=20)
    for row in range(3):
        again, _, _ = runner.logprobs(rows=int32([row] * 20), tokens=ids[row], top=0)
        np.testing.assert_array_equal(again, values[row])
        assert (np.diff(values[row]) <= 0).all()
        assert (values[row] <= 0).all()


def test_threads_and_instruction_sets_change_no_bit() -> None:
    rows, tokens = int32([4, 0, 1, 2, 3] * 20), int32(range(100))
    first = load(1, "portable").logprobs(rows=rows, tokens=tokens, top=20)
    for isa in native.available():
        for threads in (1, 3):
            found = load(threads, isa).logprobs(rows=rows, tokens=tokens, top=20)
            for a, b in zip(found, first, strict=True):
                assert a.tobytes() == b.tobytes()


def test_a_small_vocabulary_can_be_asked_for_whole() -> None:
    table = np.array([[2, 2, -0.0, 0, 3]], np.float32)
    bench = Bench()
    small = bench.finish(bench.embedding(table), 5)
    run(small, [([0], 0, [0])])
    _, ids, _ = small.logprobs(rows=int32([0]), tokens=int32([0]), top=5)
    assert ids.tolist() == [[4, 0, 1, 2, 3]]
    with pytest.raises(ValueError, match=r"top: expected 0 to 5, got 6"):
        small.logprobs(rows=int32([0]), tokens=int32([0]), top=6)


def test_one_certain_token_has_logprob_zero() -> None:
    table = np.full((1, 600), -500, np.float32)
    table[0, 599] = 300
    bench = Bench()
    certain = bench.finish(bench.embedding(table), 600)
    run(certain, [([0], 0, [0])])
    logprob, _, top = certain.logprobs(rows=int32([0, 0]), tokens=int32([599, 3]), top=2)
    assert logprob.tolist() == [0, -800]
    assert top.tolist() == [[0, -800]] * 2
    assert not np.signbit(logprob[0])


def test_natural_log_is_accurate() -> None:
    rng = np.random.default_rng(0)
    samples = [*np.exp(rng.uniform(-700, 700, 5000)), *rng.uniform(0.5, 2, 5000)]
    samples += [1.0, 2.0, 0.5, math.sqrt(0.5), math.nextafter(1, 2), math.nextafter(1, 0), 49152.0]
    for x in samples:
        true = math.log(x)
        assert abs(native.Kernels.natural_log(float(x)) - true) <= 2 * math.ulp(true)
    assert native.Kernels.natural_log(1.0) == 0


@pytest.mark.parametrize(
    ("rows", "tokens", "top", "message"),
    [
        ([ROWS], [0], 0, r"rows\[0\]: 5 is not one of 5 rows"),
        ([0, -1], [0, 0], 0, r"rows\[1\]: -1"),
        ([0], [VOCAB], 0, r"tokens\[0\]: 3001 is not in a vocabulary of 3001"),
        ([0], [-1], 0, r"tokens\[0\]: -1"),
        ([0, 1], [0], 0, r"tokens: expected 2 values, got 1"),
        ([0], [0], 21, r"top: expected 0 to 20, got 21"),
        ([0], [0], -1, r"top: expected 0 to 20, got -1"),
    ],
)
def test_what_is_wrong_is_refused(
    runner: native.Runner, rows: list[int], tokens: list[int], top: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        runner.logprobs(rows=int32(rows), tokens=int32(tokens), top=top)
