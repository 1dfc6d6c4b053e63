"""Packing: every format comes back exactly; sizes that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest

from native_programs import FORMATS, random_blocks
from samovar import _native as native
from samovar.checkpoint.formats import FORMATS_BY_NAME


@pytest.fixture(scope="module")
def pool() -> native.Pool:
    return native.Pool(2)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_every_format_comes_back_exactly(name: str, rows: int, pool: native.Pool) -> None:
    cols = 768 if FORMATS_BY_NAME[name].block_elements == 256 else 1120
    rng = np.random.default_rng(rows)
    raw = rng.integers(0, 256, FORMATS_BY_NAME[name].row_bytes(cols) * rows, dtype=np.uint8)
    weight = native.Weight.pack([raw], [name], [rows], cols, arena=native.Arena(), pool=pool)
    expected = FORMATS_BY_NAME[name].dequantize(raw).reshape(rows, cols)
    assert (weight.rows, weight.cols) == (rows, cols)
    np.testing.assert_array_equal(weight.dequantize(), expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("cols", [1, 33, 65])
def test_floats_need_no_whole_blocks(name: str, cols: int, pool: native.Pool) -> None:
    raw = random_blocks(name, 5 * cols, np.random.default_rng(cols)).reshape(-1)
    weight = native.Weight.pack([raw], [name], [5], cols, arena=native.Arena(), pool=pool)
    expected = FORMATS_BY_NAME[name].dequantize(raw).reshape(5, cols)
    np.testing.assert_array_equal(weight.dequantize(), expected)


def test_parts_in_several_formats_are_one_matrix(pool: native.Pool) -> None:
    rng = np.random.default_rng(0)
    names, rows = ["Q4_1", "Q6_K", "Q8_0"], [20, 3, 48]
    raw = [random_blocks(n, r * 512, rng).reshape(-1) for n, r in zip(names, rows, strict=True)]
    arena = native.Arena()
    weight = native.Weight.pack(raw, names, rows, 512, arena=arena, pool=pool)
    expected = [
        FORMATS_BY_NAME[n].dequantize(b).reshape(-1, 512) for n, b in zip(names, raw, strict=True)
    ]
    np.testing.assert_array_equal(weight.dequantize(), np.concatenate(expected))
    assert weight.input_type == "q8"
    assert arena.nbytes == weight.nbytes > 0


@pytest.mark.parametrize("rows", [[20, 3, 48], [16, 32, 5], [64, 64]])
def test_parts_in_one_format_are_one_matrix(rows: list[int], pool: native.Pool) -> None:
    rng = np.random.default_rng(1)
    raw = [random_blocks("Q5_0", r * 320, rng).reshape(-1) for r in rows]
    weight = native.Weight.pack(
        raw, ["Q5_0"] * len(rows), rows, 320, arena=native.Arena(), pool=pool
    )
    expected = FORMATS_BY_NAME["Q5_0"].dequantize(np.concatenate(raw)).reshape(-1, 320)
    np.testing.assert_array_equal(weight.dequantize(), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_two_parts_alternate(name: str, pool: native.Pool) -> None:
    rng = np.random.default_rng(2)
    raw = [random_blocks(name, 192 * 256, rng).reshape(-1) for _ in range(2)]
    weight = native.Weight.pack(
        raw, [name] * 2, [192] * 2, 256, alternate=True, arena=native.Arena(), pool=pool
    )
    parts = [FORMATS_BY_NAME[name].dequantize(r).reshape(3, 64, 256) for r in raw]
    expected = np.stack(parts, axis=1).reshape(384, 256)
    np.testing.assert_array_equal(weight.dequantize(), expected)


@pytest.mark.parametrize(
    ("formats", "rows"),
    [
        (["Q4_0"], [64]),
        (["Q4_0"] * 3, [64] * 3),
        (["Q4_0", "Q8_0"], [64] * 2),
        (["Q4_0"] * 2, [64, 128]),
        (["Q4_0"] * 2, [96] * 2),
    ],
)
def test_other_parts_do_not_alternate(
    formats: list[str], rows: list[int], pool: native.Pool
) -> None:
    raw = [
        np.zeros(FORMATS_BY_NAME[f].row_bytes(32) * r, np.uint8)
        for f, r in zip(formats, rows, strict=True)
    ]
    with pytest.raises(ValueError, match="parts: to alternate they must be two of one format"):
        native.Weight.pack(raw, formats, rows, 32, alternate=True, arena=native.Arena(), pool=pool)


def test_a_weight_outlives_its_arena_and_pool() -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    raw = values.reshape(-1).view(np.uint8)
    weight = native.Weight.pack([raw], ["F32"], [2], 32, arena=native.Arena(), pool=native.Pool(1))
    np.testing.assert_array_equal(weight.dequantize(), values)


RAW = np.zeros(18 * 4, np.uint8)


@pytest.mark.parametrize(
    ("parts", "formats", "rows", "cols", "message"),
    [
        ([RAW], ["Q4_0"], [3], 32, r"part 0: 3 x 32 in Q4_0 is 54 bytes, got 72"),
        ([RAW], ["Q4_0"], [2], 64 + 1, r"part 0: Q4_0 needs a multiple of 32 columns, got 65"),
        ([RAW], ["Q9_9"], [4], 32, r"part 0: format Q9_9 is not one of F32"),
        ([RAW], ["Q4_0"], [0], 32, r"part 0: rows must be 1"),
        ([RAW], ["Q4_0"], [-4], 32, r"part 0: rows must be 1"),
        ([RAW], ["Q4_0"], [1 << 62], 32, r"part 0: rows must be 1"),
        ([RAW], ["Q4_0"], [4], 0, r"cols must be 1"),
        ([RAW], ["Q4_0"], [4], 1 << 40, r"cols must be 1"),
        ([RAW], ["Q4_0", "Q4_0"], [4], 32, r"parts, formats and rows"),
        ([], [], [], 32, r"parts: at least one"),
        ([RAW, RAW[:64]], ["Q4_0", "BF16"], [4, 1], 32, r"part 1: BF16 reads bf16 rows"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    parts: list[np.ndarray],
    formats: list[str],
    rows: list[int],
    cols: int,
    message: str,
    pool: native.Pool,
) -> None:
    with pytest.raises(ValueError, match=message):
        native.Weight.pack(parts, formats, rows, cols, arena=native.Arena(), pool=pool)


@pytest.mark.parametrize(
    "part", [RAW.view(np.int8), RAW[::2], RAW.astype(np.float32), "text", None, [1, 2]]
)
def test_arrays_of_another_kind_are_refused(part: object, pool: native.Pool) -> None:
    with pytest.raises(TypeError, match=r"parts: expected .*uint8"):
        native.Weight.pack([part], ["Q4_0"], [4], 32, arena=native.Arena(), pool=pool)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers: expected 1"),
        ({"kv_heads": -1}, "kv_heads: expected 1"),
        ({"head_dim": 80}, "head_dim: .* multiples of 32 up to 256, got 80"),
        ({"head_dim": 288}, "head_dim: .* got 288"),
        ({"num_blocks": 0}, "num_blocks: expected 1"),
        ({"dtype": "int4"}, "dtype: expected bf16, f32 or q8, got int4"),
    ],
)
def test_a_kv_cache_of_another_shape_is_refused(change: dict[str, object], message: str) -> None:
    shape = {"layers": 1, "kv_heads": 1, "head_dim": 64, "num_blocks": 4, "dtype": "bf16"}
    with pytest.raises(ValueError, match=message):
        native.KvCache(**shape | change)


def test_a_kv_cache_reserves_and_does_not_touch() -> None:
    shape = {"layers": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}
    cache = native.KvCache(**shape, num_blocks=1 << 16)
    assert cache.block_bytes == native.KvCache.block_bytes_for(**shape) == 32 * 8 * 128 * 2 * 2 * 32
    assert cache.nbytes == cache.block_bytes << 16  # 256 GiB
    with pytest.raises(MemoryError):
        native.KvCache(**shape, num_blocks=1 << 26)
    with pytest.raises(ValueError, match="dst: block 65536 of 65536"):
        cache.copy_block(0, 1 << 16)
    with pytest.raises(ValueError, match="src: block -1"):
        cache.copy_block(-1, 0)
