"""Each kernel of each table gives the bits of its contract in native/kernels/kernels.h."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from native_programs import FORMATS, random_blocks
from samovar import _native as native

Floats = NDArray[np.float32]

TABLES = native.available()
SIZES = (1, 5, 16, 31, 64, 576, 1537)


@pytest.fixture(params=TABLES)
def kernels(request: pytest.FixtureRequest) -> native.Kernels:
    return native.Kernels(request.param)


def f32(x: object) -> np.float32:
    return np.float32(x)  # type: ignore[arg-type]


def fma(a: object, b: object, c: object) -> Floats:
    """a * b + c rounded once: the product of two floats is exact in a long double."""
    product = np.asarray(a, np.float32).astype(np.longdouble) * np.asarray(b, np.float32)
    return (product + np.asarray(c, np.float32)).astype(np.float32)


def lanes16(x: Floats) -> Floats:
    """[steps, 16]: what each virtual lane sees, padded with zeros."""
    return np.pad(x, (0, -len(x) % 16)).reshape(-1, 16)


def tree16(lanes: Floats) -> np.float32:
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width : 2 * width]
    return f32(lanes[0])


def sum16(x: Floats) -> np.float32:
    total = np.zeros(16, np.float32)
    for step in lanes16(x):
        total = total + step
    return tree16(total)


def exp(x: Floats) -> Floats:
    """The polynomial of native/kernels/math.inl, operation by operation."""
    round_ = f32(12582912.0)
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.minimum(x, f32(89))
        t = fma(y, f32(float.fromhex("0x1.715476p+0")), round_)
        n = t - round_
        r = fma(n, f32(-float.fromhex("0x1.62e4p-1")), y)
        r = fma(n, f32(-float.fromhex("0x1.7f7d1cp-20")), r)
        q: Floats = np.full_like(r, float.fromhex("0x1.6a1a8ep-10"))
        for c in ("0x1.123fb4p-7", "0x1.555916p-5", "0x1.55548ap-3", "0x1.fffffcp-2"):
            q = fma(q, r, f32(float.fromhex(c)))
        p = fma(q, r * r, r) + f32(1)
        exponent = (t.view(np.int32) - round_.view(np.int32) + 126) << 23
        result = (p + p) * exponent.astype(np.int32).view(np.float32)
    return np.where(x < f32(-86.9), f32(0), result)


def bf16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def activations(rng: np.random.Generator, *shape: int) -> Floats:
    x = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.02, 20, 1)
    return x.astype(np.float32)


def test_the_last_table_is_portable() -> None:
    assert TABLES[-1] == "portable"
    assert len(set(TABLES)) == len(TABLES)


def test_an_unknown_table_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="portable"):
        native.Kernels("mmx")


@pytest.mark.parametrize("k", SIZES)
def test_quantize_q8(kernels: native.Kernels, k: int) -> None:
    x = activations(np.random.default_rng(k), 3, k)
    x[1, : min(k, 32)] = 0
    x[2, : min(k, 32)] *= f32(1e-38)  # 127 / max overflows: zeros
    q, d, finite = kernels.quantize_q8(x)
    assert finite
    for row in range(3):
        for b in range(-(-k // 32)):
            block = x[row, b * 32 : b * 32 + 32]
            most = np.abs(block).max()
            codes, scale = np.zeros(len(block), np.int8), f32(0)
            if most > f32(1e-36):
                scale = most / f32(127)
                codes = np.rint(block * (f32(127) / most)).astype(np.int8)
            assert d[row, b] == scale
            np.testing.assert_array_equal(q[row, b * 32 : b * 32 + 32], codes)


@pytest.mark.parametrize("name", FORMATS)
def test_matmul_gives_a_row_the_same_bits_among_any_others(name: str) -> None:
    """Row counts fall on all kinds of tiles: single rows, few, blocks that are full or not.

    k is more than one slice of it.
    """
    rng = np.random.default_rng(len(name))
    n, k = 40, 1536 if name.endswith("_K") else 1504
    blocks = random_blocks(name, n * k, rng).reshape(-1)
    pool, arena = native.Pool(1), native.Arena()
    weight = native.Weight.pack([blocks], [name], [n], k, arena=arena, pool=pool)
    x, add = activations(rng, 131, k), activations(rng, 131, n)
    whole = native.Kernels("portable").matmul(x, weight, add=add)
    for table in TABLES[:-1]:
        for rows in (1, 6, 9, 16, 23, 33, 50, 64, 131):
            found = native.Kernels(table).matmul(x[-rows:], weight, add=add[-rows:])
            np.testing.assert_array_equal(found, whole[-rows:])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("k", SIZES)
def test_rows_that_are_not_finite_are_told(kernels: native.Kernels, k: int, bad: float) -> None:
    for place in {0, k // 2, k - 1}:
        x = activations(np.random.default_rng(1), 1, k)
        x[0, place] = bad
        assert not kernels.quantize_q8(x)[2]
        assert not kernels.round_bf16(x)[1]
    largest = np.full((1, k), np.finfo(np.float32).max)
    assert kernels.quantize_q8(largest)[2]
    assert kernels.round_bf16(largest)[1]


@pytest.mark.parametrize("k", SIZES)
def test_round_bf16(kernels: native.Kernels, k: int) -> None:
    x = np.random.default_rng(k).integers(0, 0x7F000000, (2, k), np.uint32).view(np.float32)
    x[1] *= -1
    bits, finite = kernels.round_bf16(x)
    assert finite
    np.testing.assert_array_equal(bits, bf16(x).view(np.uint32) >> 16)


@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(kernels: native.Kernels, n: int) -> None:
    rng = np.random.default_rng(n)
    x, w, plus = activations(rng, n), activations(rng, n), activations(rng, n)
    squares = np.zeros(16, np.float32)
    for step in lanes16(x):
        squares = fma(step, step, squares)
    factor = f32(1) / np.sqrt(tree16(squares) / f32(n) + f32(1e-5))
    plain = kernels.rms_norm(x[None], eps=1e-5)
    np.testing.assert_array_equal(plain[0], x * factor)
    whole = kernels.rms_norm(x[None], w, plus[None], eps=1e-5)
    np.testing.assert_array_equal(whole[0], x * factor * w + plus)


@pytest.mark.parametrize("n", SIZES)
def test_gated_activations(kernels: native.Kernels, n: int) -> None:
    rng = np.random.default_rng(n)
    gate, up = activations(rng, n) * f32(4), activations(rng, n)
    silu = gate / (f32(1) + exp(-gate))
    np.testing.assert_array_equal(kernels.silu_mul(gate[None], up[None])[0], silu * up)
    inner = fma(gate * gate * gate, f32(0.044715), gate)
    gelu = gate / (f32(1) + exp(inner * f32(-1.5957691216)))
    np.testing.assert_array_equal(kernels.gelu_tanh_mul(gate[None], up[None])[0], gelu * up)


def test_activations_are_near_the_real_functions(kernels: native.Kernels) -> None:
    x = np.linspace(-30, 30, 4001, dtype=np.float32)[None]
    one = np.ones_like(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(
        kernels.silu_mul(x, one), wide / (1 + np.exp(-wide)), rtol=3e-7, atol=1e-30
    )
    u = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    expected = 0.5 * wide * (1 + np.tanh(u))
    np.testing.assert_allclose(kernels.gelu_tanh_mul(x, one), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("n", SIZES)
def test_exp_sum(kernels: native.Kernels, n: int) -> None:
    x = np.random.default_rng(n).uniform(-60, 40, n).astype(np.float32)
    x[n // 2] = -np.inf
    expected = exp((x - f32(0.5)) * f32(0.75))
    out, total = kernels.exp_sum(x, 0.5, 0.75)
    np.testing.assert_array_equal(out, expected)
    assert out[n // 2] == 0
    assert total == sum16(expected)


def test_exp_is_accurate_to_about_one_ulp(kernels: native.Kernels) -> None:
    x = np.random.default_rng(0).uniform(-86.8, 88.7, 100_000).astype(np.float32)
    out, _ = kernels.exp_sum(x)
    true = np.exp(x.astype(np.float64))
    assert (np.abs(out - true) / np.spacing(true.astype(np.float32))).max() < 1.1
    edges, _ = kernels.exp_sum(np.array([0, -0.0, -87, -1000, 89, 1000], np.float32))
    np.testing.assert_array_equal(edges, [1, 1, 0, 0, np.inf, np.inf])


@pytest.mark.parametrize("half", [1, 16, 20, 64])
def test_rope(kernels: native.Kernels, half: int) -> None:
    rng = np.random.default_rng(half)
    x, c, s = activations(rng, 2 * half), activations(rng, half), activations(rng, half)
    a, b = x[:half], x[half:]
    expected = np.concatenate([fma(a, c, -(b * s)), fma(b, c, a * s)])
    np.testing.assert_array_equal(kernels.rope(x[None], c, s)[0], expected)


def test_rope_angles_are_rounded_from_the_true_ones() -> None:
    inv_freq = 10000.0 ** -np.arange(0, 1, 1 / 32)
    for position in (0, 1, 511, 131_071, 999_983):
        cosines, sines = native.Kernels.rope_angles(inv_freq, position, 1.0)
        angle = (position * inv_freq).astype(np.longdouble)
        for got, true in ((cosines, np.cos(angle)), (sines, np.sin(angle))):
            ulps = np.abs(got - true) / np.spacing(np.abs(got) + f32(1e-30))
            assert ulps.max() < 1


def test_scale(kernels: native.Kernels) -> None:
    x = activations(np.random.default_rng(0), 2, 37)
    np.testing.assert_array_equal(kernels.scale(x, 1.7), x * f32(1.7))


def test_divide(kernels: native.Kernels) -> None:
    x = activations(np.random.default_rng(0), 2, 37)
    np.testing.assert_array_equal(kernels.divide(x, 1.7), x / f32(1.7))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_all_finite_sees_every_value(kernels: native.Kernels, n: int, bad: float) -> None:
    x = np.full(n, np.finfo(np.float32).max, np.float32)
    x[::2] *= -1
    assert kernels.all_finite(x)
    for at in range(n):
        one = x.copy()
        one[at] = bad
        assert not kernels.all_finite(one)


@pytest.mark.parametrize("n", SIZES)
def test_argmax(kernels: native.Kernels, n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        x = rng.integers(-5, 5, n).astype(np.float32)  # many ties
        assert kernels.argmax(x) == int(np.argmax(x))
        x[rng.integers(n)] = np.nan
        expected = 0 if np.isnan(x).all() else int(np.nanargmax(x))
        assert kernels.argmax(x) == expected
    assert kernels.argmax(np.full(n, -np.inf, np.float32)) == 0
    assert kernels.argmax(np.full(n, np.nan, np.float32)) == 0
    assert kernels.argmax(np.array([np.nan, -np.inf], np.float32)) == 1


def pairs(q: Floats, k: Floats) -> Floats:
    """q . k over the last axis in the order of TDPBF16PS: by 32, even and odd apart."""
    total = np.zeros(np.broadcast_shapes(q.shape, k.shape)[:-1], np.float32)
    for block in range(0, q.shape[-1], 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for i in range(block, block + 32, 2):
            even = fma(q[..., i], k[..., i], even)
            odd = fma(q[..., i + 1], k[..., i + 1], odd)
        total = total + (even + odd)
    return total


def chain(q: Floats, k: Floats) -> Floats:
    total = np.zeros(np.broadcast_shapes(q.shape, k.shape)[:-1], np.float32)
    for i in range(q.shape[-1]):
        total = fma(q[..., i], k[..., i], total)
    return total


def stored(x: Floats, dtype: str) -> Floats:
    """What a page gives back for x [tokens, hd]."""
    if dtype == "f32":
        return x
    if dtype == "q8":
        blocks = x.reshape(len(x), -1, 32)
        most = np.abs(blocks).max(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            codes = np.where(most > 0, np.rint(blocks * (f32(127) / most)), 0)
        x = (codes.astype(np.float32) * (most / f32(127))).reshape(x.shape)
    return bf16(x)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8"])
@pytest.mark.parametrize(("hd", "tokens", "rows"), [(32, 3, 1), (64, 70, 5), (96, 512, 16)])
def test_attend(kernels: native.Kernels, dtype: str, hd: int, tokens: int, rows: int) -> None:
    rng = np.random.default_rng(tokens)
    q, k, v = (activations(rng, n, hd) for n in (rows, tokens, tokens))
    base, factor = 1024, f32(0.125)
    first = base + rng.integers(-5, max(1, tokens // 2), rows).astype(np.int32)
    last = base + rng.integers(tokens // 2, tokens, rows).astype(np.int32)
    last[rows // 2 :] = base + tokens - 1
    if rows > 4:
        first[3], last[3] = 0, base - 1  # sees nothing
    m, total, o = kernels.attend(q, k, v, first, last, scale=float(factor), dtype=dtype, base=base)

    keys, values = stored(k, dtype), stored(v, dtype)
    exact = dtype == "f32"
    dot = chain if exact else pairs
    scores = dot((q if exact else bf16(q))[:, None], keys[None]) * factor
    for r in range(rows):
        seen = (np.arange(tokens) + base >= first[r]) & (np.arange(tokens) + base <= last[r])
        if not seen.any():
            assert m[r] == -np.inf
            assert total[r] == 0
            np.testing.assert_array_equal(o[r], 0)
            continue
        assert m[r] == scores[r][seen].max()
        e = np.where(seen, exp(scores[r] - m[r]), f32(0))
        if not exact:
            e = bf16(e)
        assert total[r] == sum16(e)
        pages = -(-tokens // 32) * 32
        weights = np.pad(e, (0, pages - tokens))
        padded = np.pad(values, ((0, pages - tokens), (0, 0)))
        np.testing.assert_array_equal(o[r], dot(weights[None], padded.T))


def test_attend_merge(kernels: native.Kernels) -> None:
    rng = np.random.default_rng(0)
    a, b = activations(rng, 64), activations(rng, 64)
    m_a, l_a, m_b, l_b = 1.5, 3.25, 2.75, 0.625
    m, total, o = kernels.attend_merge(m_a, l_a, a, m_b, l_b, b)
    w_a, w_b = exp(np.array([m_a - m_b], np.float32))[0], f32(1)
    assert m[0] == m_b
    assert total[0] == fma(l_b, w_b, f32(l_a) * w_a)
    np.testing.assert_array_equal(o[0], fma(b, w_b, a * w_a))

    nothing = -np.inf
    for merged in (
        kernels.attend_merge(m_a, l_a, a, nothing, 0, b * 0),
        kernels.attend_merge(nothing, 0, b * 0, m_a, l_a, a),
    ):
        assert merged[0][0] == m_a
        assert merged[1][0] == l_a
        np.testing.assert_array_equal(merged[2][0], a)
