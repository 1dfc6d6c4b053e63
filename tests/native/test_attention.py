"""Attention: right within the KV type's precision, and bit-equal however a step is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from native_programs import Bench, Floats, random_blocks, run
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


@pytest.mark.parametrize("kind", ["q8", "bf16"])
@pytest.mark.parametrize(
    "case",
    [
        Case(560, heads=3, kv_heads=1, head_dim=32),  # 96 columns: rows are padded
        Case(40, heads=3, kv_heads=3, head_dim=96),
        Case(530, heads=4, kv_heads=2, head_dim=256),
    ],
)
def test_rows_are_rounded_as_apart(case: Case, kind: str) -> None:
    """A product with rounded rows is the same whether attention writes them or round_rows does."""
    cols = case.heads * case.head_dim
    rng = np.random.default_rng(3)
    blocks = random_blocks("Q8_0" if kind == "q8" else "BF16", 48 * cols, rng)

    def products(*, fused: bool, threads: int, isa: str) -> Floats:
        bench = Bench(threads, max_tokens=1024, max_logit_rows=1024, isa=isa)
        x, out, last = bench.embedding(case.table), bench.buffer(cols), bench.buffer(48)
        # Memory that has seen other rows: padding must be written, too.
        rows = bench.buffer(cols, kind)
        bench.program.add_rms_norm(x=x, weight=None, eps=1e-5, out=x, origin="norm")
        targets = {"out": out, "out_rows": rows} if fused else {"out": out}
        bench.program.add_attention(
            x=x,
            **targets,
            layer=0,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            scale=case.head_dim**-0.5,
            window=0,
            origin="attention",
        )
        if not fused:
            bench.program.add_round_rows(x=out, out=rows, origin="round")
        weight = bench.pack_blocks(
            [blocks], ["Q8_0" if kind == "q8" else "BF16"], np.empty((48, cols))
        )
        bench.program.add_linear(x=rows, weight=weight, out=last, origin="linear")
        cache = native.KvCache(
            layers=1,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            num_blocks=32,
            dtype=case.kv,
        )
        runner = bench.finish(last, 48, cache)
        ids, table, found = range(case.tokens), range(18), []
        for begin, end in ((0, case.tokens - 1), (case.tokens - 1, case.tokens)):
            run(runner, [(ids[begin:end], begin, table)], range(end - begin))
            found.append(runner.logits[: end - begin].copy())
        return np.concatenate(found)

    expected = products(fused=False, threads=1, isa="portable")
    for isa in native.available():
        for threads in (1, 3):
            found = products(fused=True, threads=threads, isa=isa)
            assert found.tobytes() == expected.tobytes()


def test_attention_must_have_a_result() -> None:
    bench = Bench()
    x = bench.buffer(96)
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 32, "scale": 1.0, "window": 0, "layer": 0}
    with pytest.raises(ValueError, match=r"attention: x: column 0"):
        bench.program.add_attention(x=x, **shape, origin="here")
    x = bench.embedding(np.zeros((4, 96), np.float32))
    with pytest.raises(ValueError, match=r"here: attention: neither out nor out_rows is given"):
        bench.program.add_attention(x=x, **shape, origin="here")
    wide = bench.buffer(64, "q8")
    with pytest.raises(ValueError, match=r"out_rows: expected 32 columns, got 64"):
        bench.program.add_attention(x=x, out_rows=wide, **shape, origin="here")
    with pytest.raises(ValueError, match=r"out_rows: expected q8 or bf16 rows, got f32"):
        bench.program.add_attention(x=x, out_rows=bench.buffer(32), **shape, origin="here")
