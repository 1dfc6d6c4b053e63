"""The reader on sound files, and on files that are not: always one clear error, at once."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_gguf
from gguf_writer import GGUFWriter, Typed, random_blocks
from samovar.checkpoint import open_checkpoint
from samovar.checkpoint.gguf import GGUFFile
from samovar.errors import CheckpointError, UnsupportedModel

U64_MAX = 2**64 - 1


def small(**metadata: Any) -> GGUFWriter:
    """Two tensors and the given metadata."""
    writer = GGUFWriter({"general.architecture": "none", **metadata})
    writer.tensor("a", "F32", (3,), struct.pack("<3f", 1, 2, 3))
    writer.tensor("b", "Q8_0", (2, 64), random_blocks("Q8_0", (2, 64), np.random.default_rng(0)))
    return writer


def refused(path: Path, match: str, error: type[CheckpointError] = CheckpointError) -> None:
    with pytest.raises(error, match=match) as caught:
        GGUFFile(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message


def overwritten(writer: GGUFWriter, field: str, value: int) -> bytes:
    """The file with one header field replaced."""
    data = bytearray(writer.build())
    offset, kind = writer.fields[field]
    size = struct.calcsize(kind)
    data[offset : offset + size] = value.to_bytes(size, "little")
    return bytes(data)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type_comes_back(tmp_path: Path, version: int) -> None:
    scalars = {
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "f32": 0.1,
        "bool": True,
        "str": "zażółć 🫖",
        "u64": U64_MAX,
        "i64": -(2**63),
        "f64": 0.1,
    }
    metadata = {f"x.{kind}": Typed(kind, value) for kind, value in scalars.items()}
    metadata |= {f"y.{kind}": Typed(kind, [value] * 3) for kind, value in scalars.items()}
    metadata["z"] = Typed("str", [])
    metadata["w"] = Typed("f32", [])
    file = GGUFFile(GGUFWriter(metadata, version=version).write(tmp_path / "m.gguf"))
    found: Any
    array: Any
    for kind, value in scalars.items():
        found = file.metadata[f"x.{kind}"]
        assert found == value
        assert type(found) is type(value)
        array = file.metadata[f"y.{kind}"]
        expected = np.float32(0.1) if kind == "f32" else value
        assert list(array) == [expected] * 3
    assert file.metadata["z"] == []
    empty: Any = file.metadata["w"]
    assert len(empty) == 0


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_come_back_with_their_bytes(tmp_path: Path, alignment: int) -> None:
    writer = GGUFWriter({}, alignment=alignment)
    rng = np.random.default_rng(3)
    shapes = {"Q4_1": (3, 64), "Q6_K": (2, 512), "F32": (5,), "BF16": (2, 3, 4)}
    for kind, shape in shapes.items():
        writer.tensor(kind.lower(), kind, shape, random_blocks(kind, shape, rng))
    file = GGUFFile(writer.write(tmp_path / "m.gguf"))
    assert list(file.tensors) == [kind.lower() for kind in shapes]
    for name, _, shape, data in writer.tensors:
        tensor = file.tensors[name]
        assert tensor.shape == shape
        assert tensor.format.name == name.upper()
        assert tensor.offset % alignment == 0
        assert bytes(file.data(tensor)) == data
    file.drop_pages()
    assert bytes(file.data(tensor)) == data
    with pytest.raises(TypeError, match="read-only"):
        file.data(tensor)[0] = 1


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing.gguf", "No such file")
    (tmp_path / "empty.gguf").touch()
    refused(tmp_path / "empty.gguf", "too short")
    fifo = tmp_path / "pipe.gguf"
    os.mkfifo(fifo)
    refused(fifo, "not a regular file")
    with pytest.raises(UnsupportedModel, match="safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("magic", 0x46554747 ^ 1, "not a GGUF file"),
        ("version", 0, "version: found 0"),
        ("version", 4, "version: found 4"),
        ("tensor_count", U64_MAX, "tensor count: found 18446744073709551615"),
        ("tensor_count", 60000, "tensor count: found 60000"),
        ("tensor_count", 3, "tensor 2"),
        ("kv_count", 2**40, "metadata count"),
        ("kv_count", 4, r"k\.bool: has 7 dimensions"),
        ("kv.k.str.key.length", 0, "metadata key 1: has a length of 0"),
        ("kv.k.str.key.length", U64_MAX, "metadata key 1: has a length"),
        ("kv.k.str.type", 13, "k.str: has value type 13"),
        ("kv.k.str.length", 2**63, r"k\.str: needs 9223372036854775808 bytes"),
        ("kv.k.strs.count", U64_MAX, r"k\.strs: has 18446744073709551615 strings"),
        ("kv.k.strs.count", 2**22 + 1, r"k\.strs: has 4194305 strings"),
        ("kv.k.strs.1.length", 2**60, r"k\.strs\[1\]: does not fit"),
        ("kv.k.strs.item_type", 9, r"k\.strs: is an array of arrays"),
        ("kv.k.strs.item_type", 77, r"k\.strs: is an array of value type 77"),
        ("kv.k.ints.count", U64_MAX, r"k\.ints: needs"),
        ("kv.k.bool", 2, r"k\.bool: holds a truth value"),
        ("tensor.a.name.length", 0, "name of tensor 0"),
        ("tensor.a.name.length", 256, "name of tensor 0: has a length of 256"),
        ("tensor.a.num_dims", 0, "a: has 0 dimensions"),
        ("tensor.a.num_dims", 5, "a: has 5 dimensions"),
        ("tensor.a.dim0", 0, r"a: has the impossible shape \[0\]"),
        ("tensor.a.dim0", U64_MAX, "a: has the impossible shape"),
        ("tensor.a.dim0", 2**50, "a: its data lie at"),
        ("tensor.a.type", 200, "a: has the unknown tensor type 200"),
        ("tensor.a.offset", 8, "a: its offset 8 is no multiple of 32"),
        ("tensor.a.offset", U64_MAX - 31, "a: its data lie at"),
        ("tensor.b.offset", 0, "b: its data overlap those of a"),
        ("tensor.b.dim0", 33, "b: has rows of 33"),
        ("tensor.b.dim1", 2**32, "b: its data lie at"),
    ],
)
def test_hostile_fields_are_named(tmp_path: Path, field: str, value: int, match: str) -> None:
    writer = small(**{"k.str": "text", "k.strs": ["x", "y"], "k.ints": [1, 2], "k.bool": True})
    writer.header()
    path = tmp_path / "m.gguf"
    path.write_bytes(overwritten(writer, field, value))
    refused(path, match)


def test_well_formed_but_unsupported_files_say_so(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = small()
    writer.header()
    for field, value, match in (
        ("version", 1, "GGUF 1 is not supported"),
        ("version", 3 << 24, "big-endian"),
        ("tensor.a.type", 20, "a: stored as IQ4_NL"),
    ):
        path.write_bytes(overwritten(writer, field, value))
        refused(path, match, UnsupportedModel)
    refused(small(**{"split.count": 3}).write(path), "one of 3 parts", UnsupportedModel)


@pytest.mark.parametrize("alignment", [0, 4, 24, 2**21])
def test_alignment_is_a_power_of_two(tmp_path: Path, alignment: int) -> None:
    path = small(**{"general.alignment": alignment}).write(tmp_path / "m.gguf")
    refused(path, "general.alignment: found")


def test_duplicates_and_bad_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = small()
    writer.metadata += [("k", 1), ("k", 2)]
    refused(writer.write(path), "k: this key occurs twice")
    writer = small()
    writer.tensor("a", "F32", (1,), bytes(4))
    refused(writer.write(path), "a: this tensor occurs twice")
    refused(small(k=Typed("str", b"\xff\xfe")).write(path), "k: is not UTF-8")
    bad = Typed("str", [b"fine", b"\xc3("])
    refused(small(k=bad).write(path), r"k\[1\]: is not UTF-8")
    refused(small(**{"a\nb": 1}).write(path), "unprintable")


def test_a_file_cut_at_any_byte_of_its_header_is_refused(tmp_path: Path) -> None:
    writer = tiny_gguf.llama()
    whole = writer.build()
    path = tmp_path / "m.gguf"
    tracemalloc.start()
    for size in range(0, len(writer.header()), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            GGUFFile(path)
    path.write_bytes(whole[:-33])
    refused(path, "truncated")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(whole)


def test_every_number_of_the_header_may_be_hostile(tmp_path: Path) -> None:
    writer = tiny_gguf.llama()
    whole = writer.build()
    path = tmp_path / "m.gguf"
    fields = [f for f in writer.fields if not f.startswith("tensor.blk.1")]
    tracemalloc.start()
    for field in fields:
        offset, kind = writer.fields[field]
        size = struct.calcsize(kind)
        for value in (0, 1, 1 << (8 * size - 1), (1 << 8 * size) - 1, 1 << (4 * size)):
            data = bytearray(whole)
            data[offset : offset + size] = value.to_bytes(size, "little")
            path.write_bytes(data)
            read_whole(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(whole)


@settings(max_examples=300)
@given(data=st.data())
def test_random_damage_gives_a_model_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    writer = tiny_gguf.gemma3() if data.draw(st.booleans()) else tiny_gguf.llama()
    header = len(writer.header())
    content = bytearray(writer.build())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, header - 1))
        piece = data.draw(st.binary(min_size=1, max_size=9))
        match data.draw(st.sampled_from(["overwrite", "insert", "delete"])):
            case "overwrite":
                content[position : position + len(piece)] = piece
            case "insert":
                content[position:position] = piece
            case _:
                del content[position : position + len(piece)]
    path = tmp_path_factory.mktemp("mutated") / "m.gguf"
    path.write_bytes(content)
    read_whole(path)


def read_whole(path: Path) -> None:
    """Open a model and touch everything; nothing but a CheckpointError may come out."""
    message = ""
    try:
        checkpoint = open_checkpoint(path)
        _ = checkpoint.tokenizer
        for name in checkpoint.unused():
            tensor = checkpoint.tensor(name)
            tensor.format.dequantize(tensor.data)
    except CheckpointError as error:
        message = str(error)
    assert not message or str(path) in message
    assert "\n" not in message
