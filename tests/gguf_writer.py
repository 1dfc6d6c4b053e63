"""A GGUF v3 writer for tests, written from the specification, apart from our reader.

    writer = GGUFWriter({"general.architecture": "llama", "llama.block_count": u32(2)})
    writer.tensor("output_norm.weight", "F32", (64,), array.tobytes())
    writer.write(path)

Metadata values: bool, str, int (u32, or i32 when negative), float (f32), lists of one kind, or a
`Typed` value for any other type. Shapes are row-major: [out, in]. Offsets of every header field
are kept in `fields`, so that a test can overwrite exactly one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUE_TYPES = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "str": (8, ""),
    "array": (9, ""),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}

# name: (type id, elements of a block, bytes of a block, byte offsets of its float16 scales,
# root mean square of a value for a scale of 1 and random bits)
TENSOR_TYPES: dict[str, tuple[int, int, int, tuple[int, ...], float]] = {
    "F32": (0, 1, 4, (), 1),
    "F16": (1, 1, 2, (), 1),
    "Q4_0": (2, 32, 18, (0,), 4.6),
    "Q4_1": (3, 32, 20, (0, 2), 8.9),
    "Q5_0": (6, 32, 22, (0,), 9.2),
    "Q5_1": (7, 32, 24, (0, 2), 18),
    "Q8_0": (8, 32, 34, (0,), 74),
    "Q4_K": (12, 256, 144, (0, 2), 325),
    "Q5_K": (13, 256, 176, (0, 2), 660),
    "Q6_K": (14, 256, 210, (208,), 1360),
    "BF16": (30, 1, 2, (), 1),
}


@dataclass(frozen=True)
class Typed:
    """A value with its GGUF type spelled out; a list makes an array of that type."""

    kind: str
    value: Any


def u32(value: int) -> Typed:
    """An unsigned 32-bit integer."""
    return Typed("u32", value)


def random_blocks(
    kind: str, shape: Sequence[int], rng: np.random.Generator, scale: float = 0.02
) -> bytes:
    """Valid random blocks for a tensor of `shape`: any bits, values around `scale` in size."""
    _, elements, size, scale_offsets, spread = TENSOR_TYPES[kind]
    count = int(np.prod(shape))
    assert shape[-1] % elements == 0, f"{kind} rows are multiples of {elements}"
    if kind in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(count) * scale).astype(np.float32)
        if kind == "F32":
            return values.tobytes()
        if kind == "F16":
            return values.astype(np.float16).tobytes()
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    blocks: NDArray[np.uint8] = rng.integers(0, 256, (count // elements, size), dtype=np.uint8)
    for offset in scale_offsets:
        scales = (rng.standard_normal(len(blocks)) * scale / spread).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


class GGUFWriter:
    """Collects metadata and tensors, then lays out the file.

    `fields` (after `header()`) maps a name such as "version", "tensor_count", "kv.KEY.length",
    "kv.KEY.type", "tensor.NAME.dim0" to (offset in the file, struct format).
    """

    def __init__(
        self, metadata: Mapping[str, Any], *, version: int = 3, alignment: int | None = None
    ) -> None:
        self.metadata: list[tuple[str, Any]] = list(metadata.items())
        if alignment is not None:
            self.metadata.append(("general.alignment", u32(alignment)))
        self.alignment = alignment or 32
        self.version = version
        self.tensors: list[tuple[str, int, tuple[int, ...], bytes]] = []
        self.fields: dict[str, tuple[int, str]] = {}

    def tensor(self, name: str, kind: str | int, shape: Sequence[int], data: bytes) -> None:
        """Add a tensor; `kind` is a name of TENSOR_TYPES or a raw type id."""
        type_id = kind if isinstance(kind, int) else TENSOR_TYPES[kind][0]
        self.tensors.append((name, type_id, tuple(shape), data))

    def header(self) -> bytes:
        """Everything before the tensor data, padding included."""
        out = bytearray(b"GGUF")
        self.fields = {"magic": (0, "<I")}

        def put(field: str, fmt: str, value: Any) -> None:
            self.fields[field] = (len(out), fmt)
            out.extend(struct.pack(fmt, value))

        def put_str(field: str, text: str | bytes) -> None:
            raw = text if isinstance(text, bytes) else text.encode()
            put(f"{field}.length", "<Q", len(raw))
            out.extend(raw)

        def put_value(field: str, value: Any, kind: str) -> None:
            if kind == "str":
                put_str(field, value)
            else:
                put(field, VALUE_TYPES[kind][1], value)

        put("version", "<I", self.version)
        put("tensor_count", "<Q", len(self.tensors))
        put("kv_count", "<Q", len(self.metadata))
        for key, value in self.metadata:
            field = f"kv.{key}"
            put_str(f"{field}.key", key)
            kind, plain = _kind(value)
            if isinstance(plain, list):
                put(f"{field}.type", "<I", VALUE_TYPES["array"][0])
                put(f"{field}.item_type", "<I", VALUE_TYPES[kind][0])
                put(f"{field}.count", "<Q", len(plain))
                for i, item in enumerate(plain):
                    put_value(f"{field}.{i}", item, kind)
            else:
                put(f"{field}.type", "<I", VALUE_TYPES[kind][0])
                put_value(field, plain, kind)
        offset = 0
        for name, type_id, shape, data in self.tensors:
            field = f"tensor.{name}"
            put_str(f"{field}.name", name)
            put(f"{field}.num_dims", "<I", len(shape))
            for i, dim in enumerate(reversed(shape)):
                put(f"{field}.dim{i}", "<Q", dim)
            put(f"{field}.type", "<I", type_id)
            put(f"{field}.offset", "<Q", offset)
            offset += -(-len(data) // self.alignment) * self.alignment
        out.extend(bytes(-len(out) % self.alignment))
        return bytes(out)

    def build(self) -> bytes:
        """The whole file."""
        out = bytearray(self.header())
        for _, _, _, data in self.tensors:
            out.extend(data)
            out.extend(bytes(-len(out) % self.alignment))
        return bytes(out)

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.build())
        return path


def _kind(value: Any) -> tuple[str, Any]:
    if isinstance(value, Typed):
        return value.kind, value.value
    if isinstance(value, list):
        return _kind(value[0])[0] if value else "u32", value
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return "u32" if value >= 0 else "i32", value
    if isinstance(value, float):
        return "f32", value
    return "str", value
