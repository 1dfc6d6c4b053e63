"""Attention: right within the KV type's precision, and bit-equal however a step is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from native_programs import Bench, Floats, run
from samovar import _native as native

TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "q8": 6e-2}


@dataclass(frozen=True)
class Case:
    """Tokens whose q, k and v are the rows of a random table."""

    tokens: int
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 0
    kv: str = "bf16"

    @property
    def table(self) -> Floats:
        rng = np.random.default_rng(self.head_dim)
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        return rng.normal(size=(self.tokens, width)).astype(np.float32)

    def load(self, *, threads: int = 2, isa: str | None = None) -> native.Runner:
        bench = Bench(threads, max_tokens=2048, max_logit_rows=2048, isa=isa)
        x, out = bench.embedding(self.table), bench.buffer(self.heads * self.head_dim)
        bench.program.add_attention(
            x=x,
            out=out,
            layer=0,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            window=self.window,
            origin="attention",
        )
        cache = native.KvCache(
            layers=1,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            num_blocks=128,
            dtype=self.kv,
        )
        return bench.finish(out, self.heads * self.head_dim, cache)

    def attend(
        self, chunks: list[int], *, threads: int = 2, isa: str | None = None, first_block: int = 0
    ) -> Floats:
        """Results of all tokens, computed in steps of the given sizes."""
        runner = self.load(threads=threads, isa=isa)
        blocks = [first_block + (7 * b) % 61 for b in range((self.tokens + 31) // 32)]
        found, start = [], 0
        for count in chunks:
            assert not run(runner, [(range(start, start + count), start, blocks)], range(count))
            found.append(runner.logits[:count].copy())
            start += count
        assert start == self.tokens
        return np.concatenate(found)

    def expected(self) -> Floats:
        heads = self.table.astype(np.float64).reshape(self.tokens, -1, self.head_dim)
        q, k, v = np.split(heads, [self.heads, self.heads + self.kv_heads], axis=1)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) * self.head_dim**-0.5
        age = np.arange(self.tokens)[:, None] - np.arange(self.tokens)
        seen = (age >= 0) & ((self.window == 0) | (age < self.window))
        weights = np.where(seen, np.exp(scores - scores.max()), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hts,shd->thd", weights, v).reshape(self.tokens, -1)


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8"])
@pytest.mark.parametrize(
    "case",
    [
        Case(70),
        Case(700, window=100),
        Case(560, heads=1, kv_heads=1, head_dim=64, window=513),
        Case(45, heads=20, kv_heads=1, head_dim=96),
        Case(40, heads=4, kv_heads=4, head_dim=256, window=1),
    ],
)
def test_the_result_is_attention(case: Case, kv: str) -> None:
    case = Case(**vars(case) | {"kv": kv})
    assert np.abs(case.attend([case.tokens]) - case.expected()).max() < TOLERANCE[kv]


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8"])
@pytest.mark.parametrize("window", [0, 40, 600])
def test_cutting_the_work_changes_no_bit(kv: str, window: int) -> None:
    case = Case(1060, heads=2, kv_heads=1, window=window, kv=kv)  # three chunks of context
    whole = case.attend([1060], threads=1)
    for threads, chunks in (
        (2, [1060]),
        (3, [7] * 10 + [454, 500] + [1] * 36),  # the last steps split their context
        (1, [1010] + [5] * 10),
    ):
        np.testing.assert_array_equal(
            case.attend(chunks, threads=threads, first_block=60), whole, err_msg=f"{threads}"
        )


@pytest.mark.parametrize("isa", native.available())
def test_instruction_sets_change_no_bit(isa: str) -> None:
    for kv in TOLERANCE:
        case = Case(540, heads=3, kv_heads=1, kv=kv, window=530)
        np.testing.assert_array_equal(
            case.attend([530, 10], isa=isa), case.attend([540], isa="portable")
        )


def test_sequences_of_a_step_do_not_meet() -> None:
    case = Case(130)
    alone = case.attend([130])
    runner = case.load()
    ids = range(130)
    tables = [[0, 5, 9, 2, 11], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]
    run(runner, [(ids[:100], 0, tables[0]), (ids[:33], 0, tables[1]), (ids[:1], 0, tables[2])])
    run(
        runner,
        [(ids[1:64], 1, tables[2]), (ids[100:], 100, tables[0]), (ids[33:34], 33, tables[1])],
    )
    np.testing.assert_array_equal(runner.logits[:3], alone[[63, 129, 33]])


def test_a_copied_block_serves_another_sequence() -> None:
    case = Case(50)
    alone = case.attend([50])
    bench = Bench(max_tokens=64)
    x, out = bench.embedding(case.table), bench.buffer(192)
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 32, "scale": 32**-0.5, "window": 0}
    bench.program.add_attention(x=x, out=out, layer=0, **shape, origin="attention")
    cache = native.KvCache(layers=1, kv_heads=2, head_dim=32, num_blocks=8, dtype="bf16")
    runner = bench.finish(out, 192, cache)
    run(runner, [(range(40), 0, [0, 1])])
    cache.copy_block(1, 5)
    run(runner, [(range(40, 50), 40, [0, 5])])
    np.testing.assert_array_equal(runner.logits[0], alone[49])
