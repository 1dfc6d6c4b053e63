"""Steps: batching, chunks, threads; rows that are not finite; every wrong input refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_programs import Bench, Decoder, Floats, run, small_cache
from samovar import _native as native

TOKENS = np.random.default_rng(1).integers(0, 100, 60).tolist()


@pytest.fixture(scope="module")
def whole() -> Floats:
    """Logits after each of 60 tokens, computed alone on one thread."""
    runner = Decoder().load(threads=1)
    found = []
    for start in range(0, 60, 15):
        run(runner, [(TOKENS[start : start + 15], start, [2, 9])], range(15))
        found.append(runner.logits[:15].copy())
    return np.concatenate(found)


@pytest.mark.parametrize("isa", native.available())
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_instruction_sets_change_no_bit(isa: str, threads: int, whole: Floats) -> None:
    runner = Decoder().load(threads=threads, isa=isa)
    run(runner, [(TOKENS, 0, [0, 1])])
    np.testing.assert_array_equal(runner.logits[0], whole[-1])


@settings(max_examples=25)
@given(data=st.data())
def test_random_steps_change_no_bit(data: st.DataObject, whole: Floats) -> None:
    """Several sequences, each a prefix of the same tokens, join and leave in random chunks."""
    runner = Decoder().load()
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    done = [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chunks, who, room = [], [], 64
        for s, (start, end) in enumerate(zip(done, lengths, strict=True)):
            count = min(data.draw(st.sampled_from([60, 0, 1, 7, 20])), end - start, room)
            if count:
                chunks.append((TOKENS[start : start + count], start, [2 * s, 2 * s + 1]))
                who.append(s)
                room -= count
        if not chunks:
            continue
        assert not run(runner, chunks)
        for row, (s, (tokens, start, _)) in enumerate(zip(who, chunks, strict=True)):
            done[s] = start + len(tokens)
            np.testing.assert_array_equal(runner.logits[row], whole[done[s] - 1])


def broken() -> native.Runner:
    """The decoder's embedding, with rows that are not finite: 1 has NaN, 2 an infinity."""
    table = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    table[1, 5], table[2, 63] = np.nan, -np.inf
    bench = Bench()
    x, rounded = bench.embedding(table), bench.buffer(64, "q8")
    bench.program.add_round_rows(x=x, out=rounded, origin="round")
    blocks = np.full((64 * 2, 34), 7, np.uint8)
    qkv, out = bench.buffer(64), bench.buffer(32)
    weight = bench.pack_blocks([blocks], ["Q8_0"], np.empty((64, 64)))
    bench.program.add_linear(x=rounded, weight=weight, out=qkv, origin="linear")
    wide = bench.buffer(96)
    bench.program.add_linear(
        x=x, weight=bench.pack(np.eye(96, 64, dtype=np.float32)), out=wide, origin="wide"
    )
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 32, "scale": 1.0, "window": 0}
    bench.program.add_attention(x=wide, out=out, layer=0, **shape, origin="attention")
    return bench.finish(out, 32)


def test_a_row_that_is_not_finite_disturbs_nobody() -> None:
    runner = broken()
    assert run(runner, [([3, 4, 5], 0, [0]), ([6, 7], 0, [1])]) == []
    alone = runner.logits[:2].copy()
    found = run(runner, [([3, 4, 5], 0, [2]), ([6, 1, 2], 0, [4]), ([6, 7], 0, [3])])
    assert set(found) == {4, 5}
    np.testing.assert_array_equal(runner.logits[[0, 2]], alone)
    # The block of the failed sequence serves another one as if it were fresh.
    assert run(runner, [([6, 7], 0, [4])]) == []
    np.testing.assert_array_equal(runner.logits[0], alone[1])


def test_logits_that_are_not_finite_name_their_token() -> None:
    table = np.zeros((4, 32), np.float32)
    table[2, 31] = np.inf
    bench = Bench()
    runner = bench.finish(bench.embedding(table), 32)
    assert run(runner, [([2, 0, 1, 2], 0, [0]), ([2], 0, [1])], [1, 3, 4]) == [3, 4]


@pytest.mark.parametrize("broken", [0, 16 * 40, 16 * 80 + 4])
def test_a_product_that_is_not_finite_names_its_token(broken: int) -> None:
    head = np.zeros((16 * 80 + 5, 32), np.float32)
    head[broken, 0] = 3e38  # beyond the largest float for token 2 only
    table = np.ones((4, 32), np.float32)
    table[2] = 2
    bench = Bench()
    last = bench.buffer(32, rows="logits")
    bench.program.add_take_logit_rows(x=bench.embedding(table), out=last, origin="take")
    logits = bench.buffer(len(head), rows="logits")
    bench.program.add_linear(x=last, weight=bench.pack(head), out=logits, origin="head")
    bench.program.set_logits(x=logits)
    runner = native.Runner(bench.program, small_cache(), native.Kernels(), bench.pool)
    assert run(runner, [([2, 0, 1, 2], 0, [0]), ([2], 0, [1])], [1, 3, 4]) == [3, 4]


def test_a_step_may_need_no_logits(whole: Floats) -> None:
    runner = Decoder().load()
    run(runner, [(TOKENS[:30], 0, [0, 1])], [])
    run(runner, [(TOKENS[30:], 30, [0, 1])], [3, 29])
    np.testing.assert_array_equal(runner.logits[:2], whole[[33, 59]])


def test_logits_are_a_view_that_keeps_its_runner() -> None:
    runner = Decoder().load()
    logits = runner.logits
    run(runner, [(TOKENS[:3], 0, [0])])
    expected = logits[0].copy()
    assert logits.shape == (16, 100)
    assert not logits.flags.writeable
    del runner
    np.testing.assert_array_equal(logits[0], expected)


def test_the_profile_counts_each_operation() -> None:
    runner = Decoder(layers=1).load()
    run(runner, [(TOKENS[:3], 0, [0])])
    runner.profile(True)
    for start in (3, 4):
        run(runner, [([5], start, [0])])
    entries = runner.profile(False)
    kinds = [e["kind"] for e in entries[:4]]
    assert kinds == ["embedding, rope_angles, rms_norm", "linear", "rope", "attention"]
    assert {e["calls"] for e in entries} == {2}
    assert all(e["ns"] > 0 for e in entries)
    assert entries[1]["origin"] == "qkv"


STEP: dict[str, Any] = {
    "tokens": [1, 2, 3, 4, 5],
    "positions": [0, 1, 2, 40, 41],
    "seq_start": [0, 3, 5],
    "kv_len": [3, 42],
    "block_table": [[0, -1], [1, 2]],
    "logit_rows": [2, 4],
}


@pytest.fixture(scope="module")
def decoder() -> native.Runner:
    return Decoder().load()


def attempt(runner: native.Runner, **change: Any) -> None:
    arrays = {name: np.array(value, np.int32) for name, value in STEP.items()}
    runner.run(**arrays | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, 2, 3, 4, 100]}, r"tokens: 100 at 4 is not in a vocabulary of 100"),
        ({"tokens": [1, -2, 3, 4, 5]}, r"tokens: -2 at 1"),
        ({"tokens": []}, r"tokens: expected 1 to 64, got 0"),
        ({"tokens": [0] * 65}, r"tokens: expected 1 to 64, got 65"),
        ({"tokens": [0] * 6}, r"positions: expected 6, got 5"),
        ({"positions": [0, 1, 2, 3, 5]}, r"positions: expected 40 at row 3, got 3"),
        ({"positions": [0, 1, 1, 40, 41]}, r"positions: expected 2 at row 2, got 1"),
        ({"seq_start": [0, 5]}, r"seq_start: expected 3 values, got 2"),
        ({"seq_start": [0, 0, 5]}, r"seq_start: sequence 0 has rows 0 to 0"),
        ({"seq_start": [0, 9, 5]}, r"seq_start: sequence 0 has rows 0 to 9"),
        ({"seq_start": [0, 2, 4]}, r"seq_start: expected 0 to 5"),
        ({"seq_start": [1, 3, 5]}, r"seq_start: expected 0 to 5"),
        ({"kv_len": [2, 42]}, r"kv_len: sequence 0 has 3 rows, but only 2 tokens"),
        ({"kv_len": [-(1 << 31), 42]}, r"kv_len: sequence 0"),
        ({"kv_len": []}, r"kv_len: expected 1 to 16 sequences, got 0"),
        ({"block_table": [[0, -1]]}, r"block_table: expected 2 rows, got 1"),
        ({"block_table": [[0], [1]]}, r"block_table: 1 blocks for the 42 tokens of sequence 1"),
        ({"block_table": [[-1, 0], [1, 2]]}, r"block_table: -1 for block 0 of sequence 0"),
        ({"block_table": [[0, -1], [1, 64]]}, r"block_table: 64 for block 1 of sequence 1"),
        ({"block_table": [[0, -1], [1, 0]]}, r"block 0 is written by sequences 0 and 1"),
        ({"block_table": [[0, -1], [0, 2]]}, r"block 0 is written by sequence 0 and read by 1"),
        ({"block_table": [[0, -1], [2, 2]]}, r"block 2 is written by sequence 1 and read by 1"),
        ({"logit_rows": [2, 5]}, r"logit_rows: 5 is not one of 5 rows"),
        ({"logit_rows": [-1]}, r"logit_rows: -1"),
        ({"logit_rows": [4, 2]}, r"logit_rows: not ascending at 1"),
        ({"logit_rows": [2, 2]}, r"logit_rows: not ascending at 1"),
        ({"logit_rows": list(range(17))}, r"logit_rows: expected at most 16, got 17"),
    ],
)
def test_wrong_values_are_refused(
    change: dict[str, Any], message: str, decoder: native.Runner
) -> None:
    with pytest.raises(ValueError, match=message):
        attempt(decoder, **{name: np.array(v, np.int32) for name, v in change.items()})
    attempt(decoder)


@pytest.mark.parametrize("name", STEP)
def test_arrays_of_another_kind_are_refused(name: str, decoder: native.Runner) -> None:
    value = np.array(STEP[name], np.int32)
    for wrong in (value.astype(np.int64), value.astype(np.float32), STEP[name], "text"):
        with pytest.raises(TypeError, match=rf"{name}: expected .* int32, got"):
            attempt(decoder, **{name: wrong})
    with pytest.raises(TypeError, match=rf"{name}: expected a C-contiguous array"):
        attempt(decoder, **{name: np.repeat(value, 2, axis=-1)[..., ::2]})
    with pytest.raises(ValueError, match=rf"{name}: expected [12] dimensions, got"):
        attempt(decoder, **{name: value[None]})


def test_a_shared_prefix_is_read_by_two_sequences(whole: Floats) -> None:
    runner = Decoder().load()
    run(runner, [(TOKENS[:32], 0, [7])])
    run(runner, [(TOKENS[32:50], 32, [7, 1]), (TOKENS[32:41], 32, [7, 2])])
    np.testing.assert_array_equal(runner.logits[:2], whole[[49, 40]])


def test_a_cache_that_does_not_fit_the_program_is_refused() -> None:
    bench = Bench()
    x, out = bench.embedding(np.zeros((4, 96), np.float32)), bench.buffer(32)
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 32, "scale": 1.0, "window": 0}
    bench.program.add_attention(x=x, out=out, layer=1, **shape, origin="model.py:3")
    with pytest.raises(ValueError, match=r"model.py:3: attention: layer 1, but the cache has 1"):
        bench.finish(out, 32)
