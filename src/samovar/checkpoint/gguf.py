"""GGUF files: bytes -> metadata and tensor directory, every length and offset checked.

    magic, version, counts | metadata: key, type, value | directory: name, shape, type, offset
    | padding | tensor data

Nothing is trusted: a length is compared with what is left of the file before anything of that
size is allocated, and the header as a whole may not exceed MAX_HEADER_BYTES.
Source: the GGUF specification, github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from samovar.checkpoint.formats import FORMATS, UNSUPPORTED_TYPES, Format
from samovar.checkpoint.gguf_fields import Fields, Numbers, Value
from samovar.errors import CheckpointError, UnsupportedModel

MAX_HEADER_BYTES = 128 << 20  # the largest vocabulary in use, 262k tokens, takes 7 MB
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 22  # of one array
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 255
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A line of the tensor directory.  shape: row-major, so reversed from the file's.

    offset: absolute, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    num_bytes: int


class GGUFFile:
    """A mapped GGUF file, its header read and checked.

    metadata: a number array is a view of the file, a string array a list, a float32 the shortest
    decimal that names it (so 1e-06 comes back as it was written).
    spans: where each metadata entry lies in the file, as (start, end).
    Raises CheckpointError for what is damaged, UnsupportedModel for what is sound but not built.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._map = _map_file(path)
        header = _Header(self.path, self._map)
        num_tensors, num_keys = header.read_counts()
        self.metadata, self.spans = header.read_metadata(num_keys)
        _refuse_split(self.path, self.metadata)
        self.tensors = header.read_tensors(num_tensors, _alignment(self.path, self.metadata))

    def data(self, tensor: GGUFTensor) -> memoryview:
        """The bytes of a tensor, a read-only view of the mapped file."""
        return memoryview(self._map)[tensor.offset : tensor.offset + tensor.num_bytes]

    def bytes_of(self, key: str) -> memoryview:
        """A metadata entry as it lies in the file: key, type and value."""
        start, end = self.spans[key]
        return memoryview(self._map)[start:end]

    def drop_pages(self) -> None:
        """Give the pages read so far back to the system; views stay valid and fault them in."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _map_file(path: Path) -> mmap.mmap:
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"{path}: cannot be opened: {reason}") from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        if info.st_size < 24:
            raise CheckpointError(
                f"{path}: {info.st_size} bytes, too short for a GGUF header of 24 bytes"
            )
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped into memory: {error}") from error
    finally:
        os.close(fd)


class _Header:
    """A position in the header that only moves forward, within the file and the limits."""

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self.position = 0

    def error(self, field: str, message: str) -> CheckpointError:
        shown = field if len(field) <= 80 else field[:77] + "..."  # keys may have 64 KiB
        return CheckpointError(f"{self.path}: {shown}: {message}")

    def take(self, num_bytes: int, field: str) -> int:
        """Move over `num_bytes` and return where they start."""
        start = self.position
        if num_bytes > self.end - start:
            if num_bytes > self.size - start:
                raise self.error(
                    field,
                    f"needs {num_bytes} bytes at offset {start}, "
                    f"but the file ends at {self.size} (truncated or corrupted)",
                )
            raise self.error(
                field,
                f"needs {num_bytes} bytes at offset {start}, "
                f"beyond the {MAX_HEADER_BYTES} bytes that a header may have",
            )
        self.position = start + num_bytes
        return start

    def u32(self, field: str) -> int:
        start = self.take(4, field)
        return int(_U32.unpack_from(self.buffer, start)[0])

    def u64(self, field: str) -> int:
        start = self.take(8, field)
        return int(_U64.unpack_from(self.buffer, start)[0])

    def text(self, field: str) -> str:
        """A length-prefixed UTF-8 string."""
        length = self.u64(field)
        start = self.take(length, field)
        try:
            return str(self.buffer[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(field, f"is not UTF-8 ({error.reason})") from error

    def name(self, field: str, max_bytes: int) -> str:
        """A string of 1 to `max_bytes` bytes."""
        start = self.position
        length = self.u64(field)
        if not 1 <= length <= max_bytes:
            raise self.error(field, f"has a length of {length}, expected 1 to {max_bytes} bytes")
        self.position = start
        text = self.text(field)
        if not text.isprintable():
            raise self.error(field, f"{text[:60]!r} holds unprintable characters")
        return text

    def read_counts(self) -> tuple[int, int]:
        """Checks magic and version; returns the number of tensors and of metadata keys."""
        magic = self.buffer[:4]
        if magic != b"GGUF":
            raise self.error("magic", f"found {magic!r}, expected b'GGUF': not a GGUF file")
        self.position = 4
        version = self.u32("version")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedModel(f"{self.path}: version: a big-endian GGUF file, not supported")
        if version == 1:
            raise UnsupportedModel(f"{self.path}: version: GGUF 1 is not supported, only 2 and 3")
        if version not in (2, 3):
            raise self.error("version", f"found {version}, expected 2 or 3")
        num_tensors = self.u64("tensor count")
        num_keys = self.u64("metadata count")
        # The smallest entry: a tensor takes 33 bytes, a key with its value 14.
        for field, count, smallest, most in (
            ("tensor count", num_tensors, 33, MAX_TENSORS),
            ("metadata count", num_keys, 14, MAX_KEYS),
        ):
            if count > most or count * smallest > self.size:
                raise self.error(
                    field, f"found {count}, too many for {self.size} bytes (at most {most})"
                )
        return num_tensors, num_keys

    def read_metadata(self, num_keys: int) -> tuple[dict[str, Value], dict[str, tuple[int, int]]]:
        metadata: dict[str, Value] = {}
        spans: dict[str, tuple[int, int]] = {}
        for i in range(num_keys):
            start = self.position
            key = self.name(f"metadata key {i}", MAX_KEY_BYTES)
            if key in metadata:
                raise self.error(key, "this key occurs twice")
            metadata[key] = self.value(key)
            spans[key] = (start, self.position)
        return metadata, spans

    def value(self, key: str) -> Value:
        kind = self.u32(key)
        if kind == _STRING:
            return self.text(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.error(key, f"has value type {kind}, expected 0 to 12")
        scalar = self.numbers(key, kind, 1)[0]
        # str() of a float32 is the shortest decimal that rounds to it.
        return float(str(scalar)) if isinstance(scalar, np.floating) else scalar.item()

    def array(self, key: str) -> Numbers | list[str]:
        kind = self.u32(key)
        count = self.u64(key)
        if kind == _STRING:
            return self.strings(key, count)
        if kind == _ARRAY:
            raise self.error(key, "is an array of arrays, which no known model uses")
        if kind not in _SCALARS:
            raise self.error(key, f"is an array of value type {kind}, expected 0 to 12")
        return self.numbers(key, kind, count)

    def numbers(self, key: str, kind: int, count: int) -> Numbers:
        """`count` numbers as a view of the file."""
        dtype = _SCALARS[kind]
        start = self.take(count * dtype.itemsize, key)
        if kind == _BOOL and self.buffer[start : self.position].strip(b"\0\1"):
            raise self.error(key, "holds a truth value other than 0 and 1")
        # An empty array has no byte that a view could start at.
        return np.frombuffer(self.buffer, dtype, count, start) if count else np.empty(0, dtype)

    def strings(self, key: str, count: int) -> list[str]:
        """`count` strings.  One tight loop: vocabularies have a quarter of a million."""
        if count > MAX_STRINGS or count * 8 > self.end - self.position:
            raise self.error(
                key,
                f"has {count} strings, too many for the {self.size - self.position} bytes left "
                f"(at most {MAX_STRINGS})",
            )
        buffer, position, last = self.buffer, self.position, self.end - 8
        unpack = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                if position > last:
                    break
                start = position + 8
                position = start + unpack(buffer, position)[0]
                if position > self.end:
                    break
                append(str(buffer[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise self.error(f"{key}[{len(strings)}]", f"is not UTF-8 ({error.reason})") from error
        if len(strings) < count:
            raise self.error(
                f"{key}[{len(strings)}]",
                f"does not fit into the file of {self.size} bytes (truncated or corrupted)",
            )
        self.position = position
        return strings

    def read_tensors(self, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
        """The directory; offsets in the file count from the aligned end of the header."""
        tensors: dict[str, GGUFTensor] = {}
        for i in range(num_tensors):
            tensor = self.read_tensor(i, alignment)
            if tensor.name in tensors:
                raise self.error(tensor.name, "this tensor occurs twice")
            tensors[tensor.name] = tensor
        base = -(-self.position // alignment) * alignment
        placed: dict[str, GGUFTensor] = {}
        for tensor in tensors.values():
            start, end = base + tensor.offset, base + tensor.offset + tensor.num_bytes
            if end > self.size:
                raise self.error(
                    tensor.name,
                    f"its data lie at bytes {start} to {end}, but the file ends at {self.size} "
                    "(truncated or corrupted)",
                )
            placed[tensor.name] = GGUFTensor(
                tensor.name, tensor.shape, tensor.format, start, tensor.num_bytes
            )
        in_order = sorted(placed.values(), key=lambda tensor: tensor.offset)
        for left, right in pairwise(in_order):
            if right.offset < left.offset + left.num_bytes:
                raise self.error(right.name, f"its data overlap those of {left.name}")
        return placed

    def read_tensor(self, index: int, alignment: int) -> GGUFTensor:
        name = self.name(f"name of tensor {index}", MAX_NAME_BYTES)
        num_dims = self.u32(f"{name} dimensions")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.error(name, f"has {num_dims} dimensions, expected 1 to {MAX_DIMS}")
        dims = [self.u64(f"{name} shape") for _ in range(num_dims)]
        type_id = self.u32(f"{name} type")
        offset = self.u64(f"{name} offset")
        if type_id in UNSUPPORTED_TYPES:
            raise UnsupportedModel(
                f"{self.path}: {name}: stored as {UNSUPPORTED_TYPES[type_id]}, which this version "
                f"cannot run; it knows {', '.join(f.name for f in FORMATS.values())}"
            )
        if type_id not in FORMATS:
            raise self.error(name, f"has the unknown tensor type {type_id}")
        if offset % alignment:
            raise self.error(name, f"its offset {offset} is no multiple of {alignment}")
        format = FORMATS[type_id]
        shape = tuple(reversed(dims))
        if 0 in dims or math.prod(dims) >= 1 << 62:
            raise self.error(name, f"has the impossible shape {list(shape)}")
        if dims[0] % format.block_elements:
            raise self.error(
                name,
                f"has rows of {dims[0]}, no multiple of the {format.block_elements} values "
                f"of a {format.name} block",
            )
        num_bytes = math.prod(dims) // format.block_elements * format.block_bytes
        return GGUFTensor(name, shape, format, offset, num_bytes)


def _alignment(path: str, metadata: Mapping[str, Value]) -> int:
    fields = Fields(path, metadata)
    value = fields.integer("general.alignment", 8, MAX_ALIGNMENT, DEFAULT_ALIGNMENT)
    if value & (value - 1):
        raise fields.error("general.alignment", f"found {value}, expected a power of two")
    return value


def _refuse_split(path: str, metadata: Mapping[str, Value]) -> None:
    count = Fields(path, metadata).integer("split.count", 0, 1 << 16, 0)
    if count > 1:
        raise UnsupportedModel(
            f"{path}: split.count: one of {count} parts of a model; "
            "join them with `llama-gguf-split --merge` first"
        )
