"""Dequantization against scalar decoders written one value at a time from the block layouts."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_writer import TENSOR_TYPES, random_blocks
from samovar.checkpoint.formats import FORMATS, FORMATS_BY_NAME, UNSUPPORTED_TYPES

f32 = np.float32


def half(block: bytes, offset: int) -> np.float32:
    return f32(struct.unpack_from("<e", block, offset)[0])


def nibble(packed: bytes, k: int, width: int) -> int:
    """Value k of a group of 2 * width: low halves of all bytes first."""
    return packed[k] & 15 if k < width else packed[k - width] >> 4


def q4_0(block: bytes, k: int) -> np.float32:
    return half(block, 0) * f32(nibble(block[2:], k, 16) - 8)


def q4_1(block: bytes, k: int) -> np.float32:
    return half(block, 0) * f32(nibble(block[4:], k, 16)) + half(block, 2)


def q5(block: bytes, k: int, at: int) -> int:
    mask = int(struct.unpack_from("<I", block, at)[0])
    return nibble(block[at + 4 :], k, 16) | (mask >> k & 1) << 4


def q5_0(block: bytes, k: int) -> np.float32:
    return half(block, 0) * f32(q5(block, k, 2) - 16)


def q5_1(block: bytes, k: int) -> np.float32:
    return half(block, 0) * f32(q5(block, k, 4)) + half(block, 2)


def q8_0(block: bytes, k: int) -> np.float32:
    return half(block, 0) * f32(struct.unpack_from("<b", block, 2 + k)[0])


def k_quant(block: bytes, k: int, q: int) -> np.float32:
    packed, j = block[4:16], k // 32
    if j < 4:
        scale, minimum = packed[j] & 63, packed[j + 4] & 63
    else:
        scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
        minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4
    return half(block, 0) * f32(scale) * f32(q) - half(block, 2) * f32(minimum)


def q4_k(block: bytes, k: int) -> np.float32:
    return k_quant(block, k, nibble(block[16 + k // 64 * 32 :], k % 64, 32))


def q5_k(block: bytes, k: int) -> np.float32:
    high = block[16 + k % 32] >> (k // 32) & 1
    return k_quant(block, k, nibble(block[48 + k // 64 * 32 :], k % 64, 32) | high << 4)


def q6_k(block: bytes, k: int) -> np.float32:
    which, within = divmod(k, 128)
    low = nibble(block[which * 64 :], within, 64)
    high = block[128 + which * 32 + within % 32] >> (within // 32 * 2) & 3
    scale = struct.unpack_from("<b", block, 192 + k // 16)[0]
    return half(block, 208) * f32(scale) * f32((low | high << 4) - 32)


def bf16(block: bytes, k: int) -> np.float32:
    return f32(struct.unpack("<f", b"\0\0" + block)[0])


SCALAR: dict[str, Callable[[bytes, int], np.float32]] = {
    "F32": lambda block, k: f32(struct.unpack("<f", block)[0]),
    "F16": lambda block, k: half(block, 0),
    "BF16": bf16,
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}


@pytest.mark.parametrize("name", SCALAR)
def test_dequantize_equals_the_scalar_decoder_bit_for_bit(name: str) -> None:
    format = FORMATS_BY_NAME[name]
    size, elements = format.block_bytes, format.block_elements
    raw = random_blocks(name, (4, 256), np.random.default_rng(7))
    expected = [
        SCALAR[name](raw[start : start + size], k)
        for start in range(0, len(raw), size)
        for k in range(elements)
    ]
    found = format.dequantize(memoryview(raw))
    assert found.dtype == np.float32
    assert bits(found).tolist() == bits(np.array(expected, np.float32)).tolist()


def test_every_format_has_the_sizes_of_the_specification() -> None:
    assert set(FORMATS_BY_NAME) == set(TENSOR_TYPES)
    for name, (type_id, elements, size, _, _) in TENSOR_TYPES.items():
        format = FORMATS_BY_NAME[name]
        assert (format.type_id, format.block_elements, format.block_bytes) == (
            type_id,
            elements,
            size,
        )
        assert FORMATS[type_id] is format
        assert format.row_bytes(4 * elements) == 4 * size
        assert type_id not in UNSUPPORTED_TYPES


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "F32"])
def test_partial_blocks_are_refused(name: str) -> None:
    format = FORMATS_BY_NAME[name]
    with pytest.raises(ValueError, match=name):
        format.dequantize(bytes(format.block_bytes + 1))
    if format.block_elements > 1:
        with pytest.raises(ValueError, match="not a multiple"):
            format.row_bytes(format.block_elements + 1)


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return values.view(np.uint32)
