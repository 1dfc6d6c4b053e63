"""The sampler against a plain one that sorts; draws depend on seed, choice and position only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native_programs import Bench, Floats, int32, run
from samovar import _native as native

VOCAB = 1500
DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "top_k": 0,
    "seed": 1,
    "choice": 0,
    "position": 0,
}
TYPES = {"top_k": np.int32, "seed": np.uint64, "choice": np.uint32, "position": np.int32}


def rows_of(rng: np.random.Generator) -> Floats:
    """Rows of logits: peaked, flat, with many ties, with a far tail."""
    rows = rng.normal(size=(4, VOCAB))
    rows[0] *= 6
    rows[1] *= 0.1
    rows[2] = np.rint(rows[2] * 2).clip(max=5)
    rows[3] = -np.arange(VOCAB)[rng.permutation(VOCAB)] / 3
    return rows.astype(np.float32)


LOGITS = rows_of(np.random.default_rng(11))


def load(threads: int = 2, isa: str | None = None) -> native.Runner:
    bench = Bench(threads, isa=isa)
    runner = bench.finish(bench.embedding(LOGITS), VOCAB)
    run(runner, [(range(len(LOGITS)), 0, [0])], range(len(LOGITS)))
    return runner


@pytest.fixture(scope="module")
def runner() -> native.Runner:
    return load()


def mask_of(tokens: Iterable[int], spare: bool = True) -> NDArray[np.uint32]:
    """Bits of the allowed tokens; those past the vocabulary are set, and must not matter."""
    bits = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    bits[VOCAB:] = spare
    return np.packbits(bits, bitorder="little").view(np.uint32)


def sample(
    runner: native.Runner,
    rows: list[int],
    *,
    repeat: list[list[int]] | None = None,
    reply: list[list[int]] | None = None,
    bias: list[dict[int, float]] | None = None,
    allowed: list[Iterable[int]] | None = None,
    **params: Any,
) -> NDArray[np.int32]:
    """Tokens for the rows; a parameter is one value for all of them or a list."""
    repeat, reply = repeat or [[]] * len(rows), reply or [[]] * len(rows)
    arrays = {
        name: np.broadcast_to(np.asarray(value, TYPES.get(name, np.float32)), len(rows)).copy()
        for name, value in (DEFAULTS | params).items()
    }
    if bias is not None:
        arrays["bias_start"] = int32(np.cumsum([0, *map(len, bias)]))
        arrays["bias_tokens"] = int32(t for biased in bias for t in biased)
        arrays["bias_values"] = np.array([v for b in bias for v in b.values()], np.float32)
    if allowed is not None:
        arrays["mask"] = np.stack([mask_of(tokens) for tokens in allowed])
    found = runner.sample(
        rows=int32(rows),
        **arrays,
        repeat_start=int32(np.cumsum([0, *map(len, repeat)])),
        repeat_tokens=int32(t for tokens in repeat for t in tokens),
        reply_start=int32(np.cumsum([0, *map(len, reply)])),
        reply_tokens=int32(t for tokens in reply for t in tokens),
    )
    return np.array(found)


def kept_by_sorting(logits: Floats, temperature: float, top_k: int, min_p: float, top_p: float):
    """The tokens that the documented order keeps, and the mass at which top-p stopped."""
    order = np.lexsort([np.arange(VOCAB), -logits])
    p = np.exp((logits[order].astype(np.float64) - logits.max()) / np.float32(temperature))
    if top_k:
        order, p = order[:top_k], p[:top_k]
    if min_p:
        order, p = order[p >= np.float32(min_p)], p[p >= np.float32(min_p)]
    p /= p.sum()
    count = int(np.searchsorted(np.cumsum(p), np.float32(top_p))) + 1 if top_p < 1 else len(p)
    return order[:count], p[:count] / p[:count].sum()


def test_greedy_takes_the_lowest_id_of_the_best(runner: native.Runner) -> None:
    found = sample(runner, [0, 1, 2, 3], temperature=0.0, top_k=1, seed=5)
    assert found.tolist() == LOGITS.argmax(axis=1).tolist()
    assert (LOGITS[2] == LOGITS[2].max()).sum() > 1


@settings(max_examples=60)
@given(
    row=st.integers(0, 3),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 40, 47, 200, VOCAB, 5000]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
)
def test_only_kept_tokens_are_drawn_and_all_of_them(
    runner: native.Runner, row: int, temperature: float, top_k: int, min_p: float, top_p: float
) -> None:
    kept, p = kept_by_sorting(LOGITS[row], temperature, top_k, min_p, top_p)
    params = {"temperature": temperature, "top_k": top_k, "min_p": min_p, "top_p": top_p}
    draws = np.concatenate(
        [sample(runner, [row] * 500, **params, choice=range(c, c + 500)) for c in (0, 500, 1000)]
    )
    counts = np.bincount(draws, minlength=VOCAB)
    # The last token of top-p may be another when its border is a tie within rounding.
    assert set(np.flatnonzero(counts)) - set(kept) == set()
    expected = np.zeros(VOCAB)
    expected[kept] = p * len(draws)
    spread = np.sqrt(expected * (1 - expected / len(draws))) + 1e-9
    often = expected > 5
    assert (np.abs(counts - expected)[often] < 6 * spread[often]).all()


def test_a_draw_depends_on_seed_choice_and_position_only(runner: native.Runner) -> None:
    params = {"seed": [9, 9, 9, 10], "choice": [0, 0, 1, 0], "position": [4, 5, 4, 4]}
    together = sample(runner, [1] * 4, **params)
    assert len(set(together.tolist())) == 4  # a flat row of 1500 tokens
    for i in range(4):
        alone = sample(runner, [1], **{name: values[i] for name, values in params.items()})
        assert alone[0] == together[i]
    big = {"seed": [1, 1 + 2**32, 2**63 + 1, 2**64 - 1]}
    assert len(set(sample(runner, [1] * 4, **big).tolist())) == 4


def test_threads_and_instruction_sets_draw_the_same() -> None:
    rows = [0, 1, 2, 3] * 24
    rng = np.random.default_rng(3)
    kinds: dict[str, Any] = {
        "allowed": [rng.permutation(VOCAB)[: 50 + 10 * i] for i in range(96)],
        "bias": [{i: 2.0, 3 * i + 1: -0.7} for i in range(96)],
        "temperature": [0.7, 1.3] * 48,
        "top_k": ([0] * 4 + [30] * 4) * 12,
        "top_p": ([1.0] * 8 + [0.95] * 16) * 4,
        "min_p": ([0.0] * 16 + [0.01] * 8) * 4,
        "position": range(96),
    }
    first = sample(load(1, "portable"), rows, **kinds)
    for isa in native.available():
        for threads in (1, 3):
            np.testing.assert_array_equal(sample(load(threads, isa), rows, **kinds), first)


def greedy_after(penalized: Floats) -> int:
    return int(penalized.argmax())


def test_penalties_come_before_everything(runner: native.Runner) -> None:
    rng = np.random.default_rng(2)
    best = np.argsort(-LOGITS[0])[:30]
    repeat, reply = rng.choice(best, 60).tolist(), rng.choice(best, 40).tolist()
    params = {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    expected = LOGITS[0].copy()
    for token in set(repeat):
        value = expected[token]
        penalty = np.float32(1.3)
        expected[token] = value / penalty if value > 0 else value * penalty
    for token in set(reply):
        expected[token] -= np.float32(0.5) * np.float32(reply.count(token)) + np.float32(0.25)
    for top_k in (0, 1):
        found = sample(
            runner,
            [0, 0],
            **params,
            temperature=[0.0, 1e-6],
            top_k=top_k,
            repeat=[repeat] * 2,
            reply=[reply] * 2,
        )
        assert found.tolist() == [greedy_after(expected)] * 2
    # A negative logit grows apart under a repeat penalty, and the logits themselves stay.
    assert sample(runner, [0], temperature=0.0)[0] == LOGITS[0].argmax()
    np.testing.assert_array_equal(runner.logits[: len(LOGITS)], LOGITS)


def test_a_heavy_penalty_moves_the_choice(runner: native.Runner) -> None:
    best, second = np.argsort(-LOGITS[3], kind="stable")[:2]
    row = [3]
    assert sample(runner, row, temperature=0.0, reply=[[best]], presence_penalty=2.0)[0] == second
    assert sample(runner, row, temperature=0.0, repeat=[[best]], repeat_penalty=1e6)[0] == best
    assert LOGITS[3, best] == 0  # which no factor moves


def test_bias_comes_before_the_penalties(runner: native.Runner) -> None:
    best, second, third = np.argsort(-LOGITS[0])[:3].tolist()
    row = LOGITS[0].copy()
    row[second] += np.float32(30)
    row[second] /= np.float32(1e6)
    row[best] += np.float32(-100)
    found = sample(
        runner,
        [0, 0],
        temperature=[0.0, 1e-6],
        repeat=[[second]] * 2,
        repeat_penalty=1e6,
        bias=[{second: 30.0, best: -100.0}] * 2,
    )
    assert found.tolist() == [greedy_after(row)] * 2 == [third] * 2
    # Each choice has its own, also over the same row, and the logits stay.
    biases: list[dict[int, float]] = [{}, {7: 1e4}, {}, {9: 3e38, 8: -3e38}]
    found = sample(runner, [0] * 4, temperature=0.0, bias=biases)
    assert found.tolist() == [best, 7, best, 9]
    np.testing.assert_array_equal(runner.logits[: len(LOGITS)], LOGITS)


def test_bias_shifts_probabilities(runner: native.Runner) -> None:
    alone = sample(runner, [1] * 4000, choice=range(4000))
    shifted = sample(runner, [1] * 4000, choice=range(4000), bias=[{3: float(np.log(300))}] * 4000)
    p = np.exp(LOGITS[1].astype(np.float64))
    p[3] *= 300
    expected = 4000 * p[3] / p.sum()
    assert abs((shifted == 3).sum() - expected) < 6 * np.sqrt(expected)
    assert (alone == 3).sum() < 30


@settings(max_examples=80)
@given(data=st.data())
def test_only_allowed_tokens_are_chosen(runner: native.Runner, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, 3))
    count = data.draw(st.sampled_from([1, 2, 31, 700, VOCAB]))
    seed = data.draw(st.integers(0, 1000))
    allowed = np.random.default_rng(seed).permutation(VOCAB)[:count].tolist()
    penalty = data.draw(st.sampled_from([0.0, 2.0, -3e38]))
    params: dict[str, Any] = {
        "temperature": data.draw(st.sampled_from([0.0, 1e-30, 0.7, 1.0, 1e3, 3e38])),
        "top_k": data.draw(st.sampled_from([0, 1, 40, 1000])),
        "min_p": data.draw(st.sampled_from([0.0, 0.1])),
        "top_p": data.draw(st.sampled_from([0.0, 0.9, 1.0])),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "choice": range(50),
    }
    reply = np.argsort(-LOGITS[row])[:100].tolist() * 2
    found = sample(runner, [row] * 50, **params, reply=[reply] * 50, allowed=[allowed] * 50)
    assert set(found.tolist()) <= set(allowed)
    if params["temperature"] == 0 and not penalty:
        assert found[0] == min(allowed, key=lambda t: (-LOGITS[row, t], t))


def test_a_mask_of_all_tokens_changes_nothing(runner: native.Runner) -> None:
    params: dict[str, Any] = {"top_k": [0, 30] * 10, "top_p": [1.0] * 10 + [0.9] * 10}
    plain = sample(runner, [0, 1] * 10, **params, choice=range(20))
    masked = sample(runner, [0, 1] * 10, **params, choice=range(20), allowed=[range(VOCAB)] * 20)
    np.testing.assert_array_equal(masked, plain)


def test_a_mask_that_allows_nothing_gives_no_token(runner: native.Runner) -> None:
    for params in ({"temperature": 0.0}, {}, {"top_k": 5, "top_p": 0.5}):
        found = sample(runner, [0, 1, 2], **params, allowed=[[], [5], []])
        assert found.tolist() == [-1, 5, -1]
    # A bias that leaves nothing finite does not let a forbidden token through.
    low = [40, 41]
    arrays = {n: np.full(1, v, TYPES.get(n, np.float32)) for n, v in DEFAULTS.items()}
    arrays |= dict.fromkeys(("repeat_start", "reply_start"), int32([0, 0]))
    arrays |= dict.fromkeys(("repeat_tokens", "reply_tokens"), int32([]))
    found = runner.sample(
        rows=int32([0]),
        **arrays,
        bias_start=int32([0, 4]),
        bias_tokens=int32(low * 2),
        bias_values=np.full(4, -3.4e38, np.float32),
        mask=mask_of(low)[None],
    )
    assert found == [40]


def test_choices_of_one_row_are_as_if_alone(runner: native.Runner) -> None:
    rows = [1] * 30 + [0, 1, 0]
    together = sample(runner, rows, choice=range(33), allowed=[range(t, VOCAB) for t in range(33)])
    for i in (0, 17, 32):
        alone = sample(runner, rows[i : i + 1], choice=i, allowed=[range(i, VOCAB)])
        assert alone[0] == together[i]


def test_extreme_temperatures_stay_defined(runner: native.Runner) -> None:
    for temperature in (1e-45, 1e-38, 1e-30, 1e-7):
        assert sample(runner, [3], temperature=temperature)[0] == LOGITS[3].argmax()
    hot = sample(runner, [3] * 200, temperature=1e30, choice=range(200))
    assert len(set(hot.tolist())) > 150


def test_logits_that_are_not_finite_give_some_token() -> None:
    table = np.random.default_rng(0).normal(size=(4, VOCAB)).astype(np.float32)
    table[0, 100:300] = np.nan
    table[1, [5, 1499]] = np.inf
    table[2, :1400] = -np.inf
    table[3] = np.nan
    bench = Bench()
    broken = bench.finish(bench.embedding(table), VOCAB)
    assert run(broken, [(range(4), 0, [0])], range(4)) == [0, 1, 2, 3]
    for top_k in (0, 50):
        for top_p in (0.5, 1.0):
            for min_p in (0.0, 0.1):
                for temperature in (0.0, 1.0):
                    found = sample(
                        broken,
                        [0, 1, 2, 3],
                        temperature=temperature,
                        top_k=top_k,
                        top_p=top_p,
                        min_p=min_p,
                    )
                    assert ((found >= 0) & (found < VOCAB)).all()
    broken.logprobs(rows=int32(range(4)), tokens=int32(range(4)), top=20)


def test_no_rows_give_no_tokens(runner: native.Runner) -> None:
    assert sample(runner, []).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, r"temperature\[0\]: expected at least 0, got -1"),
        ({"temperature": np.nan}, r"temperature\[0\]"),
        ({"temperature": np.inf}, r"temperature\[0\]"),
        ({"top_p": 1.5}, r"top_p\[0\]: expected 0 to 1, got 1.5"),
        ({"top_p": np.nan}, r"top_p\[0\]"),
        ({"min_p": -0.1}, r"min_p\[0\]"),
        ({"top_k": -1}, r"top_k\[0\]: expected at least 0"),
        ({"repeat_penalty": 0.0}, r"repeat_penalty\[0\]: expected more than 0"),
        ({"frequency_penalty": np.inf}, r"frequency_penalty\[0\]"),
        ({"presence_penalty": np.nan}, r"presence_penalty\[0\]"),
        ({"repeat": [[VOCAB]]}, r"repeat_tokens: 1500 is not in a vocabulary of 1500"),
        ({"reply": [[-1]]}, r"reply_tokens: -1"),
        ({"bias": [{VOCAB: 1.0}]}, r"bias_tokens: 1500 is not in a vocabulary of 1500"),
        ({"bias": [{-1: 1.0}]}, r"bias_tokens: -1"),
        ({"bias": [{0: np.nan}]}, r"bias_values: expected finite numbers, got nan"),
    ],
)
def test_parameters_out_of_range_are_refused(
    change: dict[str, Any], message: str, runner: native.Runner
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(runner, [0], **change)


@pytest.mark.parametrize("row", [-1, 4, 16, 1 << 30])
def test_rows_out_of_range_are_refused(row: int, runner: native.Runner) -> None:
    with pytest.raises(ValueError, match=r"rows\[0\]: .* is not one of 4 rows"):
        sample(runner, [row])


def test_rows_are_those_of_the_last_run() -> None:
    bench = Bench()
    fresh = bench.finish(bench.embedding(LOGITS), VOCAB)
    with pytest.raises(ValueError, match=r"rows\[0\]: 0 is not one of 0 rows"):
        sample(fresh, [0])
    run(fresh, [(range(4), 0, [0])], [0, 3])
    assert sample(fresh, [1], temperature=0.0)[0] == LOGITS[3].argmax()
    with pytest.raises(ValueError, match=r"rows\[0\]: 2 is not one of 2 rows"):
        sample(fresh, [2])
    with pytest.raises(ValueError, match=r"not in a vocabulary"):
        run(fresh, [([99], 4, [0])])
    assert sample(fresh, [1], temperature=0.0)[0] == LOGITS[3].argmax()


def test_arrays_of_another_length_or_type_are_refused(runner: native.Runner) -> None:
    arrays = {
        name: np.asarray([value], TYPES.get(name, np.float32)) for name, value in DEFAULTS.items()
    }
    arrays |= dict.fromkeys(("repeat_start", "reply_start"), int32([0, 0]))
    arrays |= dict.fromkeys(("repeat_tokens", "reply_tokens"), int32([]))
    for name in arrays:
        if name.endswith("_tokens"):
            continue
        with pytest.raises(ValueError, match=rf"^{name}: expected"):
            runner.sample(rows=int32([0]), **arrays | {name: np.repeat(arrays[name], 3)})
        with pytest.raises(TypeError, match=rf"^{name}: expected an array of"):
            runner.sample(rows=int32([0]), **arrays | {name: arrays[name].astype(np.complex64)})
    for start in ([0, 5], [-1, 0], [1, 0]):
        with pytest.raises(ValueError, match=r"^repeat_start: "):
            runner.sample(rows=int32([0]), **arrays | {"repeat_start": int32(start)})
    for given_only in ("bias_start", "bias_tokens", "bias_values"):
        value = np.zeros(0, np.float32 if given_only == "bias_values" else np.int32)
        with pytest.raises(ValueError, match="expected all or none"):
            runner.sample(rows=int32([0]), **arrays, **{given_only: value})
    bias = {"bias_tokens": int32([1]), "bias_values": np.ones(1, np.float32)}
    for change, message in (
        ({"bias_start": int32([0, 2])}, "bias_start: 0 to 2 at 0 is not in 1 values"),
        ({"bias_start": int32([1])}, "bias_start: expected 2 values, got 1"),
        ({"bias_values": np.ones(2, np.float32)}, "bias_values: expected 1 values, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            runner.sample(
                rows=int32([0]), **arrays, **{"bias_start": int32([0, 1])} | bias | change
            )
    for shape in ((1, 46), (1, 48), (2, 47)):
        with pytest.raises(ValueError, match=r"mask: expected 1 x 47, got"):
            runner.sample(rows=int32([0]), **arrays, mask=np.zeros(shape, np.uint32))
    with pytest.raises(TypeError, match=r"mask: expected an array of uint32"):
        runner.sample(rows=int32([0]), **arrays, mask=np.zeros((1, 47), np.int32))
