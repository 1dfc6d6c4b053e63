"""Linear: every format gives the bits of the documented arithmetic, however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from native_programs import FORMATS, SCALES, Bench, Floats, random_blocks, run
from samovar import _native as native
from samovar.checkpoint.formats import FORMATS_BY_NAME


def fma(a: NDArray, b: NDArray, c: NDArray) -> Floats:
    """a * b + c rounded once: the product of two floats is exact in a long double."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def with_scale(name: str, blocks: NDArray[np.uint8], d: float, m: float) -> Floats:
    """The blocks' values as if their float16 scales were d (and m)."""
    blocks = blocks.copy()
    for offset, value in zip(SCALES[name], (d, m), strict=False):
        blocks[:, offset : offset + 2] = np.float16(value).reshape(1).view(np.uint8)
    return FORMATS_BY_NAME[name].dequantize(blocks.reshape(-1))


def codes_of(name: str, blocks: NDArray[np.uint8]) -> tuple[NDArray, Floats, Floats | None]:
    """Integer codes [values], and the scale and minimum that the arithmetic gives each value."""
    blocks = blocks.copy()
    d, m = (with_scale(name, blocks, *pair) for pair in ((1, 0), (0, 1)))
    scale, *minimum = (
        blocks[:, o : o + 2].copy().view(np.float16).astype(np.float32) for o in SCALES[name]
    )
    per = FORMATS_BY_NAME[name].block_elements
    if name in ("Q4_K", "Q5_K"):
        ones = blocks.copy()
        ones[:, 16:] = 0
        ones[:, -128:] = 0x11
        sc = with_scale(name, ones, 1, 0)
        plain = blocks.copy()
        plain[:, 4:16] = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
        codes = with_scale(name, plain, 1, 0)
        return codes, np.repeat(scale, per) * sc, np.repeat(minimum[0], per) * m
    if name == "Q6_K":
        return d, np.repeat(scale, per), None
    return d, np.repeat(scale, per), np.repeat(minimum[0], per) if minimum else None


def quantized(x: Floats) -> tuple[Floats, Floats]:
    """Codes [rows, k] and scales [rows, k / 32] of int8 rows."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = largest / np.float32(127)
    codes = np.rint(blocks * (np.float32(127) / largest))
    return codes.reshape(x.shape), scale[..., 0]


def statement(name: str, blocks: NDArray[np.uint8], x: Floats, outputs: int) -> Floats:
    """x . w^T in the order and with the roundings of native/kernels/kernels.h."""
    k = x.shape[1]
    acc = np.zeros((len(x), outputs), np.float32)
    if name in ("F32", "F16"):
        w = FORMATS_BY_NAME[name].dequantize(blocks.reshape(-1)).reshape(outputs, k)
        for i in range(k):
            acc = fma(x[:, None, i], w[None, :, i], acc)
        return acc
    if name == "BF16":
        w = FORMATS_BY_NAME[name].dequantize(blocks.reshape(-1)).reshape(outputs, k)
        bits = x.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        x = bits.astype(np.uint32).view(np.float32)
        for block in range(0, k, 32):
            even, odd = np.zeros_like(acc), np.zeros_like(acc)
            for i in range(block, min(block + 32, k), 2):
                even = fma(x[:, None, i], w[None, :, i], even)
                odd = fma(x[:, None, i + 1], w[None, :, i + 1], odd)
            acc = acc + (even + odd)
        return acc
    codes, scale, minimum = (
        None if part is None else part.reshape(outputs, k) for part in codes_of(name, blocks)
    )
    a, d = quantized(x)
    for b in range(k // 32):
        at = slice(32 * b, 32 * b + 32)
        # Q6_K's codes contain its scales by 16, so that the sum is the combined integer.
        total = a[:, at].astype(np.float64) @ codes[:, at].T.astype(np.float64)
        acc = fma(total, scale[None, :, 32 * b] * d[:, b, None], acc)
        if minimum is not None:
            sums = d[:, b] * a[:, at].sum(axis=1, dtype=np.float32)
            acc = fma(minimum[None, :, 32 * b], sums[:, None], acc)
    return acc


def linear(
    x: Floats,
    parts: list[tuple[str, NDArray[np.uint8], int]],
    *,
    threads: int = 2,
    isa: str | None = None,
    bias: Floats | None = None,
    add: Floats | None = None,
    step: int = 0,
) -> Floats:
    """The result of a program for all rows of x, `step` rows at a time."""
    k, outputs = x.shape[1], sum(rows for _, _, rows in parts)
    bench = Bench(threads, max_tokens=512, max_logit_rows=512, isa=isa)
    weight = bench.pack_blocks(
        [blocks for _, blocks, _ in parts],
        [name for name, _, _ in parts],
        *(np.empty((rows, k)) for _, _, rows in parts),
    )
    source = bench.embedding(np.hstack([x] if add is None else [x, add]))
    rows = source
    if add is not None:  # split [x | add] by two identities
        identity = np.eye(k + outputs, dtype=np.float32)
        rows, rest = bench.buffer(k), bench.buffer(outputs)
        for part, out in ((identity[:k], rows), (identity[k:], rest)):
            bench.program.add_linear(x=source, weight=bench.pack(part), out=out, origin="identity")
    if weight.input_type != "f32":
        rounded = bench.buffer(k, weight.input_type)
        bench.program.add_round_rows(x=rows, out=rounded, origin="round")
        rows = rounded
    out = bench.buffer(outputs)
    bench.program.add_linear(
        x=rows,
        weight=weight,
        out=out,
        bias=bias,
        add=-1 if add is None else rest,
        origin="linear",
    )
    runner = bench.finish(out, outputs)
    found = []
    step = step or len(x)
    for start in range(0, len(x), step):
        tokens = range(start, min(start + step, len(x)))
        run(runner, [(tokens, 0, range(16))], range(len(tokens)))
        found.append(runner.logits[: len(tokens)].copy())
    return np.concatenate(found)


@pytest.mark.parametrize("name", FORMATS)
def test_the_bits_are_those_of_the_statement(name: str) -> None:
    rng = np.random.default_rng(3)
    outputs, k = 21, 512
    blocks = random_blocks(name, outputs * k, rng)
    x = rng.normal(size=(3, k)).astype(np.float32)
    found = linear(x, [(name, blocks, outputs)])
    np.testing.assert_array_equal(found, statement(name, blocks, x, outputs))
    exact = x.astype(np.float64) @ (
        FORMATS_BY_NAME[name].dequantize(blocks.reshape(-1)).reshape(outputs, k).T
    )
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_1", "Q6_K"])
def test_rows_threads_and_tables_change_no_bit(name: str) -> None:
    rng = np.random.default_rng(4)
    outputs, k = 150, 256
    parts = [(name, random_blocks(name, outputs * k, rng), outputs)]
    x = rng.normal(size=(300, k)).astype(np.float32)
    whole = linear(x, parts)
    for isa in native.available():
        some = x[:40] if isa == "portable" else x
        for threads, step in ((1, 0), (3, 7), (2, 1 if len(some) < 300 else 130)):
            found = linear(some, parts, threads=threads, step=step, isa=isa)
            np.testing.assert_array_equal(found, whole[: len(some)])


@pytest.mark.parametrize(("name", "k"), [("F32", 4096), ("Q4_0", 8192), ("Q5_0", 2048)])
def test_long_rows_are_cut_without_a_trace(name: str, k: int) -> None:
    rng = np.random.default_rng(7)
    outputs = 40
    parts = [(name, random_blocks(name, outputs * k, rng), outputs)]
    x = rng.normal(size=(97, k)).astype(np.float32)
    alone = linear(x, parts, step=1)
    for num_rows in (17, 33, 41, 97):
        np.testing.assert_array_equal(linear(x[:num_rows], parts), alone[:num_rows])


def test_parts_in_several_formats_fill_their_columns() -> None:
    rng = np.random.default_rng(5)
    k, sizes = 256, {"Q4_0": 20, "Q5_K": 3, "Q8_0": 40}
    parts = [(name, random_blocks(name, n * k, rng), n) for name, n in sizes.items()]
    x = rng.normal(size=(9, k)).astype(np.float32)
    apart = [linear(x, [part]) for part in parts]
    np.testing.assert_array_equal(linear(x, parts), np.hstack(apart))


def test_bias_comes_before_add() -> None:
    rng = np.random.default_rng(6)
    outputs, k = 40, 64
    blocks = random_blocks("Q4_0", outputs * k, rng)
    x = rng.normal(size=(5, k)).astype(np.float32)
    bias, add = (rng.normal(size=s).astype(np.float32) for s in (outputs, (5, outputs)))
    plain = linear(x, [("Q4_0", blocks, outputs)])
    found = linear(x, [("Q4_0", blocks, outputs)], bias=bias, add=add)
    np.testing.assert_array_equal(found, (plain + bias) + add)


def test_two_linears_share_a_buffer_by_columns() -> None:
    rng = np.random.default_rng(8)
    x, a, b = (rng.normal(size=(n, 32)).astype(np.float32) for n in (4, 5, 7))
    bench = Bench()
    source, out = bench.embedding(x), bench.buffer(12)
    bench.program.add_linear(x=source, weight=bench.pack(a), out=out, origin="a")
    bench.program.add_linear(x=source, weight=bench.pack(b), out=out, out_col=5, origin="b")
    runner = bench.finish(out, 12)
    run(runner, [(range(4), 0, [0])], range(4))
    np.testing.assert_allclose(runner.logits[:4], x @ np.vstack([a, b]).T, rtol=1e-4, atol=1e-4)
