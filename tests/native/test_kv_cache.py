"""Blocks as bytes: what is read back is what was computed, and foreign bytes can harm nobody."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from native_programs import Decoder, run
from samovar import _native as native

TOKENS = np.random.default_rng(4).integers(0, 100, 50).tolist()
DTYPES = ["f32", "bf16", "q8"]


def cache_of(runner_kv: str, num_blocks: int = 4) -> native.KvCache:
    return native.KvCache(layers=2, kv_heads=2, head_dim=32, num_blocks=num_blocks, dtype=runner_kv)


@pytest.mark.parametrize("kv", DTYPES)
def test_a_block_moves_to_another_process_as_bytes(kv: str) -> None:
    decoder = Decoder()
    whole, cache = decoder.load_with_cache(kv=kv)
    run(whole, [(TOKENS[:40], 0, [3, 1])])
    saved = [cache.read_block(3), cache.read_block(1)]
    assert all(len(data) == cache.block_bytes for data in saved)
    run(whole, [(TOKENS[40:], 40, [3, 1])])

    other, fresh = decoder.load_with_cache(kv=kv)
    fresh.write_block(0, saved[0])
    fresh.write_block(7, memoryview(bytearray(saved[1])))
    assert [fresh.read_block(0), fresh.read_block(7)] == saved
    run(other, [(TOKENS[40:], 40, [0, 7])])
    np.testing.assert_array_equal(other.logits[0], whole.logits[0])


def test_blocks_are_apart() -> None:
    cache = cache_of("bf16", 3)
    first = bytes(cache.block_bytes)
    other = np.random.default_rng(0).integers(0, 0x3F80, cache.block_bytes // 2, np.uint16)
    cache.write_block(1, other.tobytes())
    assert cache.read_block(0) == cache.read_block(2) == first
    cache.copy_block(1, 2)
    assert cache.read_block(2) == other.tobytes()
    cache.write_block(1, first)
    assert cache.read_block(1) == first
    assert cache.read_block(2) == other.tobytes()


def hostile_words(kv: str) -> list[tuple[int, bytes]]:
    """(offset of a number in a page, its bytes)."""
    if kv == "f32":
        return [(o, np.array(v, np.float32).tobytes()) for o in (0, 4, 8188) for v in SPECIAL]
    if kv == "bf16":
        bits = (0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81)
        return [(o, np.array(b, np.uint16).tobytes()) for o in (0, 2, 4094) for b in bits]
    half = 32 * 32 + 32 * 4  # 32 tokens of 32 codes, and a scale for each
    values = (*SPECIAL, 3e38, -2.66e36)  # with a code of -128 the last two are beyond bf16, too
    places = (1024, half - 4, half + 1024, 2 * half - 4)
    return [(o, np.array(v, np.float32).tobytes()) for o in places for v in values]


SPECIAL = (np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("kv", DTYPES)
def test_values_that_are_not_finite_are_refused(kv: str) -> None:
    cache = cache_of(kv)
    page = cache.block_bytes // 4  # two layers of two heads
    good = bytes(cache.block_bytes)
    for offset, word in hostile_words(kv):
        for first in (0, 3 * page):
            bad = bytearray(good)
            bad[first + offset : first + offset + len(word)] = word
            with pytest.raises(ValueError, match="data: a value is not finite"):
                cache.write_block(2, bad)
            assert cache.read_block(2) == good
    largest = {
        "f32": np.finfo(np.float32).max.tobytes(),
        "bf16": b"\x7f\xff",
        "q8": np.float32(2.6e36).tobytes(),
    }
    page_bytes = bytearray(good)
    page_bytes[-len(largest[kv]) :] = largest[kv]
    cache.write_block(2, page_bytes)
    assert cache.read_block(2) == page_bytes


@pytest.mark.parametrize("kv", DTYPES)
def test_hostile_bytes_disturb_no_other_sequence(kv: str) -> None:
    """Any bytes that are accepted leave sequences that do not ask for them as they are."""
    runner, cache = Decoder().load_with_cache(kv=kv)
    run(runner, [(TOKENS[:10], 0, [0])])
    expected = runner.logits[0].tobytes()
    wild = np.random.default_rng(1).integers(0, 256, cache.block_bytes, np.uint8)
    if kv == "q8":
        words = wild.view(np.uint32)
        words &= np.uint32(0xF9FFFFFF)  # below the largest scale
    else:
        word = wild.view(np.uint32 if kv == "f32" else np.uint16)
        word &= np.array(0xFEFFFFFF if kv == "f32" else 0xFEFF, word.dtype)
    cache.write_block(5, wild)
    # One sequence reads the block, another one gets the page with its old content behind it.
    run(runner, [([1, 2], 32, [5, 6]), (TOKENS[:10], 0, [7])])
    assert runner.logits[1].tobytes() == expected
    run(runner, [(TOKENS[:10], 0, [5])])
    assert runner.logits[0].tobytes() == expected


def test_a_mapped_file_can_be_written(tmp_path: Path) -> None:
    cache = cache_of("bf16")
    path = tmp_path / "block"
    path.write_bytes(b"\x12" * cache.block_bytes)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        cache.write_block(0, mapped)
    assert cache.read_block(0) == b"\x12" * cache.block_bytes


def test_wrong_blocks_and_sizes_are_refused() -> None:
    cache = cache_of("q8")
    data = bytes(cache.block_bytes)
    for block in (-1, 4, 1 << 30):
        with pytest.raises(ValueError, match=rf"block: block {block} of 4"):
            cache.read_block(block)
        with pytest.raises(ValueError, match=rf"block: block {block} of 4"):
            cache.write_block(block, data)
        for pair in ((block, 0), (0, block)):
            with pytest.raises(ValueError, match=rf"(src|dst): block {block} of 4"):
                cache.copy_block(*pair)
    for wrong in (b"", data[:-1], data + b"x"):
        with pytest.raises(
            ValueError, match=rf"data: expected {len(data)} bytes, got {len(wrong)}"
        ):
            cache.write_block(0, wrong)
    for kind in (np.zeros(len(data) // 4, np.float32), "text"):
        with pytest.raises(TypeError, match="data: expected"):
            cache.write_block(0, kind)
