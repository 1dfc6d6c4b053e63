"""Cached blocks on disk: found after a restart, ignored when they are not what they should be."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
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
    left, other = folder / "abc.123.part", folder / "abc.124.part"
    for path in (left, other):
        path.write_bytes(b"half")
    os.utime(left, (0, 0))
    start(warm).close()
    assert not left.exists()
    assert other.exists()  # a process that is alive may be writing it


def test_a_block_under_the_name_of_another_is_ignored(
    tmp_path: Path, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    # The same tokens after other ones: all but the name of the file is what it should be.
    other = replace(REQUEST, prompt=(1, *PROMPT[1:]))
    run(start(tmp_path / "other"), other)
    run(start(tmp_path / "own"))
    pairs = [block_files(tmp_path / "other"), block_files(tmp_path / "own")]
    same_tokens = [
        (theirs, ours)
        for theirs in pairs[0]
        for ours in pairs[1]
        if theirs.name != ours.name and theirs.read_bytes()[:141] == ours.read_bytes()[:141]
    ]
    assert len(same_tokens) >= 4
    for theirs, ours in same_tokens:
        shutil.copyfile(theirs, ours)
    assert run(start(tmp_path / "own")) == (expected, BLOCK_TOKENS)
    assert "its checksum is wrong" in caplog.text


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    kept = path.replace(path.parent.parent / path.name)
    path.symlink_to(kept)


def become_huge(path: Path) -> None:
    os.truncate(path, 2**40)


def vanish(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "change", [become_directory, become_pipe, become_link, become_huge, vanish]
)
@pytest.mark.parametrize("running", [False, True], ids=["before", "while running"])
def test_what_is_no_file_of_a_block_is_ignored(
    warm: Path, expected: list[int], change: Callable[[Path], None], running: bool
) -> None:
    engine = start(warm) if running else None
    for path in block_files(warm):
        change(path)
    assert run(engine or start(warm)) == (expected, 0)


def test_files_of_others_are_left_alone(warm: Path, expected: list[int]) -> None:
    (folder,) = warm.iterdir()
    theirs = [folder / "notes.txt", folder / "ab", folder / ("A" * 64)]
    for path in theirs:
        path.write_text("mine")
    assert run(start(warm, cache_disk_gb=0)) == (expected, 0)
    assert sorted(block_files(warm)) == sorted(theirs)  # ours went, for there was no room for them


def test_two_processes_share_a_directory(tmp_path: Path, expected: list[int]) -> None:
    size = 17_000
    first, second = (start(tmp_path, cache_disk_gb=4 * size / 2**30) for _ in range(2))
    for i in range(4):
        for engine in (first, second):
            other = replace(REQUEST, id=str(i), prompt=(i, *PROMPT))
            for _ in engine.generate([other]):
                pass
    assert run(first)[0] == run(second)[0] == expected


ON_A_FULL_DISK = """
import logging, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]) / "engine"))
from test_disk import run, start
logging.basicConfig(level=logging.WARNING, format="%(message)s")
print(run(start(Path(sys.argv[2]))))
"""


def on_a_full_disk(
    tmp_path: Path, *before: str, **options: object
) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parent.parent
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*before, sys.executable, "-c", ON_A_FULL_DISK, str(tests), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        **options,
    )


def test_a_full_disk_stops_the_writing_only(tmp_path: Path, expected: list[int]) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = f"mount -t tmpfs -o size=72k none {tmp_path}"
    try:
        subprocess.run([*mount, script], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    twice = " && ".join([script, '"$@"', '"$@"', f"find {tmp_path} -type f"])
    result = on_a_full_disk(tmp_path, *mount, twice, "sh")
    first, second, *files = result.stdout.splitlines()
    assert first == repr((expected, 0))
    assert second == repr((expected, 3 * BLOCK_TOKENS))
    assert len(files) == 3
    assert not [name for name in files if ".part" in name]
    assert "no more blocks are cached on disk: [Errno 28]" in result.stderr


def test_a_limit_on_the_size_of_files_stops_the_writing_only(
    tmp_path: Path, expected: list[int]
) -> None:
    result = on_a_full_disk(
        tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
    )
    assert result.stdout.splitlines() == [repr((expected, 0))]
    assert "no more blocks are cached on disk: [Errno 27]" in result.stderr
    assert block_files(tmp_path) == []


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
