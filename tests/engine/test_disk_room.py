"""Room for cached blocks on disk: which leave first, and what a full disk is to the engine."""

from __future__ import annotations

import resource
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from disk_cases import (
    PROMPT,
    REQUEST,
    block_files,
    numbered,
    python,
    run,
    settled,
    short,
    start,
    written,
)
from engine_cases import replies
from samovar import Request
from samovar.engine import disk
from samovar.engine.blocks import BLOCK_TOKENS


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


def test_an_error_that_passes_costs_some_blocks_only(
    tmp_path: Path, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        replies(engine, [numbered(1)])
        written(engine)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert block_files(tmp_path) == []
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.text
    assert run(engine) == (expected, 0)
    assert run(start(tmp_path)) == (expected, 5 * BLOCK_TOKENS)
    assert len(caplog.records) == 1


ON_A_FULL_DISK = """
import logging, sys
from pathlib import Path
from disk_cases import run, start
logging.basicConfig(level=logging.WARNING, format="%(message)s")
print(run(start(Path(sys.argv[1]))))
"""


def test_a_full_disk_stops_the_writing_only(tmp_path: Path, expected: list[int]) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = f"mount -t tmpfs -o size=72k none {tmp_path}"
    try:
        subprocess.run([*mount, script], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    twice = " && ".join([script, '"$@"', '"$@"', f"find {tmp_path} -type f"])
    result = python(ON_A_FULL_DISK, tmp_path, *mount, twice, "sh")
    first, second, *files = result.stdout.splitlines()
    assert first == repr((expected, 0))
    assert second == repr((expected, 3 * BLOCK_TOKENS))
    assert len(files) == 3
    assert not [name for name in files if ".part" in name]
    assert "no more blocks are cached on disk: [Errno 28]" in result.stderr


def test_a_limit_on_the_size_of_files_stops_the_writing_only(
    tmp_path: Path, expected: list[int]
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    result = python(ON_A_FULL_DISK, tmp_path, preexec_fn=limit)
    assert result.stdout.splitlines() == [repr((expected, 0))]
    assert "no more blocks are cached on disk: [Errno 27]" in result.stderr
    assert block_files(tmp_path) == []


def test_eviction_from_memory_leaves_the_disk(tmp_path: Path, expected: list[int]) -> None:
    engine = start(tmp_path, num_blocks=16)
    for i in range(4):
        other = replace(REQUEST, id=str(i), prompt=(i, *PROMPT))
        for _ in engine.generate([other]):
            pass
    assert run(engine)[0] == expected
    assert run(start(tmp_path))[1] == 5 * BLOCK_TOKENS


def num_found(cache: Path, request: Request, **options: object) -> int:
    """Blocks of the prompt that a new process finds on disk."""
    engine = start(cache, **options)
    return run(engine, request)[1] // BLOCK_TOKENS


def room_for(num_blocks: int) -> dict[str, float]:
    return {"cache_disk_gb": num_blocks * 17_000 / 2**30}


def test_of_a_chain_the_last_block_leaves_first(tmp_path: Path) -> None:
    engine = start(tmp_path, **room_for(5))
    settled(engine, short(1, num_blocks=5), short(2))
    engine.close()
    assert num_found(tmp_path, short(1, num_blocks=5)) == 4
    assert num_found(tmp_path, short(2)) == 1


def test_of_a_chain_the_last_block_leaves_first_after_a_restart(tmp_path: Path) -> None:
    engine = start(tmp_path)
    settled(engine, short(1, num_blocks=5))
    engine.close()
    assert num_found(tmp_path, short(1, num_blocks=5), **room_for(3)) == 3


def test_a_chain_longer_than_the_room_keeps_its_beginning(tmp_path: Path) -> None:
    engine = start(tmp_path, **room_for(3))
    settled(engine, short(1, num_blocks=5), short(1, num_blocks=5))
    engine.close()
    assert len(block_files(tmp_path)) == 3
    assert num_found(tmp_path, short(1, num_blocks=5)) == 3


@pytest.mark.parametrize("restart", [False, True], ids=["while running", "after a restart"])
def test_what_is_found_in_memory_counts_as_used_on_disk(tmp_path: Path, restart: bool) -> None:
    hot = short(1, num_blocks=2)
    engine = start(tmp_path, **room_for(5))
    settled(engine, hot)
    for number in range(2, 8):
        settled(engine, short(number), hot)
    engine.close()
    if restart:
        start(tmp_path, **room_for(2)).close()
    assert num_found(tmp_path, hot) == 2


def test_what_the_disk_was_too_slow_for_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(tmp_path)
    monkeypatch.setattr(disk, "UNWRITTEN_BYTES", 40_000)  # two blocks
    assert engine._disk is not None
    may_write = threading.Event()
    engine._disk._tasks.put(lambda: may_write.wait(60) and None)
    wanted = short(1, num_blocks=5)
    replies(engine, [wanted])
    assert engine._disk._unwritten_bytes <= 40_000
    may_write.set()
    written(engine)
    assert len(block_files(tmp_path)) == 2
    settled(engine, wanted, wanted)  # both find it in memory
    engine.close()
    assert len(block_files(tmp_path)) == 5
    assert num_found(tmp_path, wanted) == 5


@given(data=strategies.data())
@settings(max_examples=25)
def test_on_disk_is_never_a_block_without_those_before_it(
    tmp_path_factory: pytest.TempPathFactory, data: strategies.DataObject
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    room = data.draw(strategies.integers(1, 8))
    engine = start(cache, num_blocks=data.draw(strategies.integers(16, 30)), **room_for(room))
    wanted = strategies.builds(short, strategies.integers(1, 3), strategies.integers(1, 5))
    for request in data.draw(strategies.lists(wanted, max_size=12)):
        replies(engine, [request])
        if data.draw(strategies.booleans()):
            written(engine)
    engine.close()
    num_files = len(block_files(cache))
    assert num_files <= room
    engine = start(cache)
    found = [
        delta.usage.cached_tokens // BLOCK_TOKENS
        for number in range(1, 4)
        for _, delta in engine.generate([short(number, num_blocks=5)])
    ]
    engine.close()
    assert sum(found) == num_files
