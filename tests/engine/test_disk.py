"""Cached blocks on disk: found after a restart, ignored when they are not what they should be."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from engine_cases import MODEL_PATHS, load, replies
from samovar import Engine, Request, SamplingParams
from samovar.engine import disk
from samovar.engine.blocks import BLOCK_TOKENS, BlockPool
from samovar.engine.prefix import PrefixTree
from samovar.errors import SettingError

PROMPT = tuple(30 + i * 7 % 200 for i in range(5 * BLOCK_TOKENS + 9))
REQUEST = Request(
    id="r",
    prompt=PROMPT,
    sampling=SamplingParams(temperature=1.0, seed=3),
    max_tokens=40,
)


TESTS = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}


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


def command(script: str, *arguments: object) -> list[str]:
    """Runs a script in a process of its own, which gets the tests' directory and `arguments`."""
    return [sys.executable, "-c", script, str(TESTS), *map(str, arguments)]


def python(
    script: str, cache: Path, *before: str, check: bool = True, **options: object
) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end, as an argument of the command `before` if there is one."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*before, *command(script, cache)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=check,
        timeout=60,
        **options,
    )


def written(engine: Engine) -> None:
    """Returns when everything queued so far is on disk."""
    assert engine._disk is not None
    done = threading.Event()
    engine._disk._tasks.put(done.set)
    assert done.wait(60)


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


KILLED_IN_THE_MIDDLE = """
import os, resource, signal, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]) / "engine"))
from test_disk import run, start
print(os.getpid(), flush=True)
engine = start(Path(sys.argv[2]))
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


SHARING = """
import logging, os, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]) / "engine"))
from test_disk import PROMPT, REQUEST, replies, run, start
logging.basicConfig(level=logging.WARNING, format="%(message)s")
os.getpid = lambda: 1  # as it is in each container
replace_file = os.replace
os.replace = lambda *names: (time.sleep(0.003), replace_file(*names))  # a disk that takes its time
engine = start(Path(sys.argv[2]), cache_disk_gb=float(sys.argv[3]))
for line in sys.stdin:
    print(replies(engine, [replace(REQUEST, prompt=(int(line), *PROMPT))]), flush=True)
engine.close()
"""


@pytest.mark.parametrize("num_blocks", [1000, 9], ids=["roomy", "each deletes the other's"])
def test_two_processes_share_a_directory(tmp_path: Path, num_blocks: int) -> None:
    disk_gb = num_blocks * 17_000 / 2**30
    processes = [
        subprocess.Popen(
            command(SHARING, tmp_path, str(disk_gb)),
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    numbers = [i % 20 for i in range(50)]
    for number in numbers:  # in step, so that both write the same blocks at the same time
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        first, second = [process.stdout and process.stdout.readline() for process in processes]
        assert first
        assert first == second
    for process in processes:
        _, warnings = process.communicate(timeout=60)
        assert (process.returncode, warnings) == (0, "")
    if num_blocks == 1000:
        for number in numbers:
            assert run(start(tmp_path), numbered(number))[1] == 5 * BLOCK_TOKENS
    else:
        cached = run(start(tmp_path, cache_disk_gb=disk_gb), numbered(numbers[-1]))[1]
        assert cached == 5 * BLOCK_TOKENS


def numbered(number: int) -> Request:
    """A request like the others, but for its first token."""
    return replace(REQUEST, id=str(number), prompt=(number, *PROMPT))


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
sys.path.insert(0, str(Path(sys.argv[1]) / "engine"))
from test_disk import run, start
logging.basicConfig(level=logging.WARNING, format="%(message)s")
print(run(start(Path(sys.argv[2]))))
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


def settled(engine: Engine, *wanted: Request) -> None:
    """Runs requests one after the other, each until the disk has what it left."""
    for request in wanted:
        replies(engine, [request])
        written(engine)


def short(number: int, num_blocks: int = 1) -> Request:
    """A request of one token whose prompt fills so many blocks and a little of the next."""
    prompt = (number, *PROMPT[: num_blocks * BLOCK_TOKENS])
    return replace(REQUEST, id=str(number), prompt=prompt, max_tokens=1)


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


def count_reads(engine: Engine) -> list[bytes]:
    """The keys of blocks that are read from disk from now on."""
    assert engine._disk is not None
    keys: list[bytes] = []
    load = engine._disk.load

    def counting(key: bytes, *rest: Any) -> bool:
        keys.append(key)
        return load(key, *rest)

    engine._disk.load = counting  # type: ignore[method-assign]
    return keys


def step(engine: Engine) -> dict[str, list[int]]:
    """The tokens that a step gives to each request."""
    return {name: list(delta.tokens) for name, delta in engine.step() or []}


def test_reading_from_disk_keeps_nobody_waiting(warm: Path, expected: list[int]) -> None:
    engine = start(warm, max_step_ms=0)  # so that one block is all that there is time for
    reads = count_reads(engine)
    engine.submit(replace(short(9), max_tokens=60))
    while not step(engine):
        pass
    engine.submit(replace(REQUEST, id="a"))
    engine.submit(replace(REQUEST, id="b"))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    while len(tokens["b"]) < 40:
        before = len(reads)
        gained = step(engine)
        assert len(reads) - before <= 1
        assert gained["9"] or len(reads) == 5
        for name in tokens:
            tokens[name] += gained.get(name, [])
        engine.check_blocks()
    assert len(reads) == 5  # what one has read the other finds in memory
    assert tokens == {"a": expected, "b": expected}


def test_alone_it_reads_step_by_step_as_well(warm: Path, expected: list[int]) -> None:
    engine = start(warm, max_step_ms=0)
    reads = count_reads(engine)
    engine.submit(REQUEST)
    for number in range(1, 5):
        assert engine.step() == []  # not None: there is more to do
        assert len(reads) == number
    engine.abort(REQUEST.id)
    engine.check_blocks()
    assert engine.step() is None
    assert run(engine) == (expected, 5 * BLOCK_TOKENS)
    assert len(reads) == 5  # what was read is kept


def test_a_prompt_without_room_reads_and_displaces_nothing(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(warm, num_blocks=16)
    reads = count_reads(engine)
    replies(engine, [short(1, num_blocks=2)])
    engine.submit(replace(REQUEST, id="2", prompt=(2, *PROMPT, *PROMPT)))
    while not step(engine):
        pass
    cached = engine.stats().blocks_cached
    assert cached
    # Of one that waits all is on disk, of the other a part is in memory as well.
    assert engine._disk is not None
    used: list[object] = []
    for name in ("store", "touch", "mark_used"):
        monkeypatch.setattr(engine._disk, name, lambda *what: used.append(what))
    for waiting in (REQUEST, replace(REQUEST, id="3", prompt=(1, *PROMPT))):
        engine.submit(waiting)
        for _ in range(3):
            step(engine)
            assert engine.stats().waiting == 1
            assert engine.stats().blocks_cached == cached
            engine.check_blocks()
        engine.abort(waiting.id)
    assert not reads
    assert not used


def test_time_spent_on_reading_is_no_cost_of_the_prompt(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(warm)
    settled(engine, short(1, num_blocks=8))
    budget = engine._pace.budget(1)
    real, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    assert engine._disk is not None
    load = engine._disk.load

    def slow(*what: Any) -> bool:
        nonlocal passed
        passed += 60.0
        return load(*what)

    engine._disk.load = slow  # type: ignore[method-assign]
    assert replies(engine, [REQUEST])
    assert passed == 5 * 60
    assert engine._pace.budget(1) > budget / 2


def test_only_bytes_are_copied_on_the_engines_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    digest = disk._digest

    def noting(*what: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return digest(*what)

    monkeypatch.setattr(disk, "_digest", noting)
    run(start(tmp_path))
    assert set(threads) == {"samovar-disk"}


class FakeCache:
    """Blocks of a few bytes."""

    block_bytes = 8

    def read_block(self, block: int) -> bytes:
        return bytes(self.block_bytes)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the package a call runs on this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "samovar" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("room", [1 << 20, 60 * 200], ids=["much room", "less than it needs"])
def test_the_work_for_a_block_does_not_grow_with_what_is_before_it(
    tmp_path: Path, room: int
) -> None:
    tier = disk.DiskTier(tmp_path, "model", room, FakeCache())  # type: ignore[arg-type]
    tree = PrefixTree(BlockPool(400), tier)
    path = [tree.root("")]
    tokens = [(i, *range(BLOCK_TOKENS - 1)) for i in range(350)]

    def grow(first: int, last: int) -> None:
        for each in tokens[first:last]:
            path.append(tree.insert(path[-1], each, *tree.take(1)))

    grow(0, 20)
    early = lines_run(lambda: grow(20, 40))
    grow(40, 330)
    assert lines_run(lambda: grow(330, 350)) < early * 1.5
    tree.release(path[1:])
    tier.close()
    size = block_files(tmp_path)[0].stat().st_size
    assert len(block_files(tmp_path)) == min(350, room // size)
    again = PrefixTree(BlockPool(400), disk.DiskTier(tmp_path, "model", room, FakeCache()))  # type: ignore[arg-type]
    assert again.is_on_disk(again.root(""), tokens[0], 0)
