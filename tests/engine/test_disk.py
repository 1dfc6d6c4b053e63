"""Cached blocks on disk: found after a restart, ignored when they are not what they should be."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from engine_cases import MODEL_PATHS, load, replies
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import BLOCK_TOKENS
from samovar.errors import SettingError

PROMPT = tuple(30 + i * 7 % 200 for i in range(5 * BLOCK_TOKENS + 9))
REQUEST = Request(
    id="r",
    prompt=PROMPT,
    sampling=SamplingParams(temperature=1.0, seed=3),
    max_tokens=40,
)


def start(cache: Path, **options: object) -> Engine:
    return load(MODEL_PATHS[0], ctx=512, cache_dir=str(cache), **options)


def run(engine: Engine, wanted: Request = REQUEST) -> tuple[list[int], int]:
    """The tokens of the reply, and how many of the prompt were cached; then the engine ends."""
    tokens: list[int] = []
    for _, delta in engine.generate([wanted]):
        tokens += delta.tokens
        cached = delta.usage.cached_tokens
    engine.check_blocks()
    engine.close()
    return tokens, cached


def block_files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.fixture
def expected() -> list[int]:
    return replies(load(MODEL_PATHS[0], ctx=512), [REQUEST])["r"][0]


@pytest.fixture
def warm(tmp_path: Path, expected: list[int]) -> Path:
    """A directory with the blocks of REQUEST and its reply."""
    assert run(start(tmp_path)) == (expected, 0)
    return tmp_path


def test_a_restart_finds_the_prompt_and_replies_the_same(warm: Path, expected: list[int]) -> None:
    assert run(start(warm)) == (expected, 5 * BLOCK_TOKENS)


def test_files_are_private_and_whole(warm: Path) -> None:
    assert len(block_files(warm)) == (len(PROMPT) + 39) // BLOCK_TOKENS
    for path in block_files(warm):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ".part" not in path.name


@pytest.mark.parametrize("options", [{"kv": "f32"}, {"kv": "q8"}])
def test_another_kv_type_finds_nothing(warm: Path, options: dict[str, str]) -> None:
    assert run(start(warm, **options))[1] == 0


def test_another_model_and_another_owner_find_nothing(warm: Path) -> None:
    other = load(MODEL_PATHS[1], ctx=512, cache_dir=str(warm))
    assert run(other)[1] == 0
    assert run(start(warm), replace(REQUEST, owner="somebody"))[1] == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "longer"])
def test_damaged_files_are_ignored_with_a_warning(
    warm: Path, expected: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path in block_files(warm):
        data = bytearray(path.read_bytes())
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        changed = {
            "truncated": data[:-1],
            "flipped": data,
            "empty": b"",
            "foreign": b"something else",
            "longer": data + b"x",
        }[damage]
        path.write_bytes(changed)
    assert run(start(warm)) == (expected, 0)
    assert "this cached block is ignored" in caplog.text
    tokens, cached = run(start(warm))
    assert tokens == expected
    assert cached >= BLOCK_TOKENS  # what was found damaged is written anew


def test_the_space_is_bounded_and_the_oldest_leave(tmp_path: Path, expected: list[int]) -> None:
    size = 17_000  # a block of this model and a little
    engine = start(tmp_path, cache_disk_gb=3 * size / 2**30)
    assert run(engine)[0] == expected
    files = block_files(tmp_path)
    assert len(files) == 3
    assert sum(path.stat().st_size for path in files) <= 3 * size


def test_a_disk_that_cannot_be_written_stops_the_writing_only(
    tmp_path: Path, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(tmp_path)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    assert run(engine) == (expected, 0)
    assert "no more blocks are cached on disk" in caplog.text


def test_what_a_killed_process_left_half_written_is_cleared(warm: Path) -> None:
    (folder,) = warm.iterdir()
    left = folder / "abc.123.part"
    left.write_bytes(b"half")
    start(warm).close()
    assert not left.exists()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SettingError, match="--cache-dir"):
        start(file)


def test_eviction_from_memory_leaves_the_disk(tmp_path: Path, expected: list[int]) -> None:
    engine = start(tmp_path, num_blocks=16)
    for i in range(4):
        other = replace(REQUEST, id=str(i), prompt=(i, *PROMPT))
        for _ in engine.generate([other]):
            pass
    assert run(engine)[0] == expected
    assert run(start(tmp_path))[1] == 5 * BLOCK_TOKENS
