"""Block formats of weights: their sizes, and exact dequantization in numpy (the oracle).

A row of a matrix is a sequence of blocks; a block is `block_bytes` long and holds
`block_elements` values. The layouts are those of the GGUF specification (ggml's `block_*`
structs); every value is one float32 expression with the rounding that ggml's own
dequantization has, so results compare bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store numbers in blocks.

    type_id: the number that GGUF files give it.
    """

    name: str
    type_id: int
    block_elements: int
    block_bytes: int
    _decode: Callable[[Bytes], Floats] = field(repr=False, compare=False)

    def dequantize(self, data: Buffer) -> Floats:
        """The values of whole blocks, flat, in the order of the file.

        data: any number of blocks, `block_bytes` each.  Raises ValueError on a partial block.
        """
        raw = np.frombuffer(data, dtype=np.uint8)
        if raw.size % self.block_bytes:
            raise ValueError(
                f"{self.name}: {raw.size} bytes are no whole number of "
                f"{self.block_bytes}-byte blocks"
            )
        with np.errstate(invalid="ignore", over="ignore"):  # damaged scales may be infinite
            return self._decode(raw.reshape(-1, self.block_bytes)).reshape(-1)

    def row_bytes(self, num_elements: int) -> int:
        """Bytes of a row of `num_elements` values, which must fill whole blocks."""
        blocks, rest = divmod(num_elements, self.block_elements)
        if rest:
            raise ValueError(
                f"{self.name}: a row of {num_elements} is not a multiple of {self.block_elements}"
            )
        return blocks * self.block_bytes


def _f16(blocks: Bytes, offset: int) -> Floats:
    """The float16 at `offset` of every block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[blocks, n] bytes -> [blocks, 2n]: all low halves first, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: Bytes, offset: int) -> Bytes:
    """Bit 4 of each of 32 values, from the 32-bit mask at `offset` of every block."""
    bits = np.unpackbits(blocks[:, offset : offset + 4], axis=-1, bitorder="little")
    return bits << np.uint8(4)


def _decode_f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _decode_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _decode_bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _decode_q8_0(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8)


def _decode_q4_0(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8))


def _decode_q4_1(blocks: Bytes) -> Floats:
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]) + _f16(blocks, 2)


def _decode_q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _f16(blocks, 0) * (q.astype(np.int8) - np.int8(16))


def _decode_q5_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _f16(blocks, 0) * q + _f16(blocks, 2)


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minimums from the 12 bytes of Q4_K and Q5_K.

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minimums 0..3 in their low six bits; the two high
    bits of each are the high bits of scale or minimum 4..7, whose low bits are bytes 8..11.
    """
    scale, minimum, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([scale & 63, (low & 15) | (scale >> 6) << 4], axis=-1)
    minimums = np.concatenate([minimum & 63, (low >> 4) | (minimum >> 6) << 4], axis=-1)
    return scales, minimums


def _decode_k(blocks: Bytes, q: Bytes) -> Floats:
    """d * scale * q - dmin * minimum for q [blocks, 8, 32] under the header of Q4_K and Q5_K."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    scale = (_f16(blocks, 0) * scales)[:, :, None]
    minimum = (_f16(blocks, 2) * minimums)[:, :, None]
    return scale * q - minimum


def _decode_q4_k(blocks: Bytes) -> Floats:
    # Each 32 bytes hold two sub-blocks of 32 values: one in the low, one in the high halves.
    return _decode_k(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _decode_q5_k(blocks: Bytes) -> Floats:
    # Bit i of byte l is bit 4 of value l in sub-block i.
    high: Bytes = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _decode_k(blocks, low | high << np.uint8(4))


def _decode_q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128 values; in each, 64 bytes of low halves and 32 bytes of bit pairs:
    # values l, l+32 take the low nibbles, l+64, l+96 the high ones; pair j of byte l is for l+32j.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high: Bytes = (pairs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & np.uint8(3)
    q = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scale = _f16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return scale[:, :, None] * q.reshape(-1, 16, 16)


_ALL = (
    Format("F32", 0, 1, 4, _decode_f32),
    Format("F16", 1, 1, 2, _decode_f16),
    Format("Q4_0", 2, 32, 18, _decode_q4_0),
    Format("Q4_1", 3, 32, 20, _decode_q4_1),
    Format("Q5_0", 6, 32, 22, _decode_q5_0),
    Format("Q5_1", 7, 32, 24, _decode_q5_1),
    Format("Q8_0", 8, 32, 34, _decode_q8_0),
    Format("Q4_K", 12, 256, 144, _decode_q4_k),
    Format("Q5_K", 13, 256, 176, _decode_q5_k),
    Format("Q6_K", 14, 256, 210, _decode_q6_k),
    Format("BF16", 30, 1, 2, _decode_bf16),
)

FORMATS: Mapping[int, Format] = MappingProxyType({f.type_id: f for f in _ALL})
FORMATS_BY_NAME: Mapping[str, Format] = MappingProxyType({f.name: f for f in _ALL})

# Types that files may hold and this version cannot run; named so that errors can name them.
UNSUPPORTED_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2 (removed)",
        5: "Q4_3 (removed)",
        9: "Q8_1",
        10: "Q2_K",
        11: "Q3_K",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        31: "Q4_0_4_4 (removed)",
        32: "Q4_0_4_8 (removed)",
        33: "Q4_0_8_8 (removed)",
        34: "TQ1_0",
        35: "TQ2_0",
        36: "IQ4_NL_4_4 (removed)",
        37: "IQ4_NL_4_8 (removed)",
        38: "IQ4_NL_8_8 (removed)",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
    }
)
