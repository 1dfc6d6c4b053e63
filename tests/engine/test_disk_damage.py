"""Files of cached blocks that are not what they should be, whoever made them so."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from disk_cases import PROMPT, REQUEST, block_files, python, run, start
from engine_cases import replies
from samovar.engine import disk
from samovar.engine.blocks import BLOCK_TOKENS


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "longer"])
def test_damaged_files_are_ignored_with_a_warning(
    warm: Path, expected: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    sound = {path: path.read_bytes() for path in block_files(warm)}
    for path in sound:
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
    # What was found damaged is written anew, and so is all behind it.
    assert {path: path.read_bytes() for path in block_files(warm)} == sound
    assert run(start(warm)) == (expected, 5 * BLOCK_TOKENS)


@pytest.mark.parametrize("room", [10.0, 7 * 17_000 / 2**30], ids=["much room", "no room to spare"])
def test_one_start_heals_all_that_is_computed_again(
    warm: Path, expected: list[int], room: float
) -> None:
    # The first block is gone, so that nothing behind it is read, and two of those are damaged.
    sound = {path: path.read_bytes() for path in block_files(warm)}
    paths = sorted(sound, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    assert len(paths) == 6
    paths[0].unlink()
    for path in paths[2:4]:
        path.write_bytes(bytes(len(sound[path])))
    kept = {path: path.stat().st_ino for path in (paths[1], *paths[4:])}
    assert run(start(warm, cache_disk_gb=room)) == (expected, 0)
    assert {path: path.read_bytes() for path in block_files(warm)} == sound
    for path, inode in kept.items():
        assert path.stat().st_ino == inode  # what is sound is not written again
    assert run(start(warm)) == (expected, 5 * BLOCK_TOKENS)


@pytest.mark.parametrize("trouble", ["full", "passing"])
def test_sound_files_outlive_a_disk_in_trouble(
    warm: Path, expected: list[int], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first block is gone when it is looked for, so that all behind it are compared.
    sound = {path: path.read_bytes() for path in block_files(warm)}
    paths = sorted(sound, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    data = sound[paths[0]]
    paths[0].unlink()
    engine = start(warm)
    assert engine._disk is not None

    def fail(path: Path, *parts: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    def fail_for_others(path: Path) -> bytes:
        if path in paths[1:]:
            raise OSError(errno.EMFILE, "too many files")
        return read(path)

    read = engine._disk._read
    if trouble == "full":
        paths[5].write_bytes(bytes(len(data)))
    else:
        monkeypatch.setattr(engine._disk, "_read", fail_for_others)
    monkeypatch.setattr(engine._disk, "_write_file", fail)
    may_write = threading.Event()
    engine._disk._tasks.put(lambda: may_write.wait(60) and None)
    assert replies(engine, [REQUEST])["r"][0] == expected
    paths[0].write_bytes(data)  # by another process
    engine._disk._writing = trouble == "passing"
    may_write.set()
    engine.close()
    assert block_files(warm) == sorted(paths[:5] if trouble == "full" else paths)


KILLED_IN_THE_MIDDLE = """
import os, resource, signal, sys
from pathlib import Path
from disk_cases import run, start
print(os.getpid(), flush=True)
engine = start(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
run(engine)
"""


def killed_while_it_wrote(cache: Path) -> tuple[int, Path]:
    """The id of a process that ended in the middle of a block, and the file that it left."""
    before = set(block_files(cache))
    result = python(KILLED_IN_THE_MIDDLE, cache, check=False)
    assert result.returncode == -signal.SIGXFSZ
    (left,) = set(block_files(cache)) - before
    assert left.stat().st_size == 9_000
    return int(result.stdout), left


def test_what_a_killed_process_left_is_in_nobodys_way(
    tmp_path: Path,
    expected: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, _ = killed_while_it_wrote(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: pid)  # as it is when a container starts again
    assert run(start(tmp_path)) == (expected, 0)
    assert run(start(tmp_path)) == (expected, 5 * BLOCK_TOKENS)
    assert not caplog.text


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path: Path) -> None:
    _, old = killed_while_it_wrote(tmp_path)
    os.utime(old, (time.time(), time.time() - 2 * disk.ABANDONED_S))
    _, young = killed_while_it_wrote(tmp_path)
    start(tmp_path).close()
    assert not old.exists()
    assert young.exists()  # a process that is alive may be writing it


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
