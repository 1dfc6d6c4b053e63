"""Too little memory ends in an error that says so, never in another reply."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from engine_cases import MODEL_PATHS, load
from samovar import Engine
from samovar.engine.load import _plan_blocks
from samovar.errors import MemoryLimit

TESTS = Path(__file__).parent.parent
ROOMS_MIB = [*range(0, 24, 2), *range(24, 280, 16), 600]
CLEAR = (
    r"MemoryError$|MemoryLimit: |SettingError: \d+ threads could not|"
    r"CheckpointError: .* cannot be mapped into memory"
)

# Each try is a process of its own that may map so many bytes more than it has: loads, replies, and
# says what came of it.
TRIES = """
import json, os, resource, sys
from pathlib import Path
from engine_cases import MODEL_PATHS, load, replies, requests
from samovar.errors import SamovarError

def try_with(room):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + room * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    try:
        engine = load(MODEL_PATHS[0], ctx=1024, threads=2)
        return repr(replies(engine, requests(engine)))
    except SamovarError as error:
        return f"{type(error).__name__}: {error}"
    except MemoryError:
        return "MemoryError"

for room in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, try_with(room).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([room, code, said]))
"""


def test_every_amount_of_memory_gives_the_reply_or_an_error() -> None:
    result = subprocess.run(
        [sys.executable, "-c", TRIES, json.dumps(ROOMS_MIB)],
        # RUST_BACKTRACE: with backtraces a Rust library that gets no memory waits for itself.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "RUST_BACKTRACE": "0",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    tries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [room for room, _, _ in tries] == ROOMS_MIB
    whole = tries[-1][2]
    assert whole.startswith("{'0': ")
    for room, code, said in tries:
        if code:
            assert not said, room  # a library ended the process: no memory and no reply
        elif said != whole:
            assert re.match(CLEAR, said), (room, said)
    kinds = Counter(said.partition(":")[0] for _, _, said in tries)
    assert kinds["MemoryLimit"] > 3


def test_the_pool_is_planned_from_what_is_free() -> None:
    block = 2**20
    plan = lambda free: _plan_blocks(1024, 8, block, free)  # noqa: E731
    assert plan(32 * block) == 32
    assert plan(200 * block) == 50
    assert plan(2**40) == 8 * 32
    with pytest.raises(MemoryLimit, match=r"choose --ctx of at most 992"):
        plan(32 * block - 1)
    for free in (block - 1, 0, -(2**20)):
        with pytest.raises(MemoryLimit, match=r"only [01] MB are free: it cannot run here"):
            plan(free)


MIB = 2**20


def load_with(free: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> Engine:
    """An engine of a small model on a machine with so much free memory once it is read."""
    monkeypatch.setattr("samovar._native.available_memory", lambda: free)
    return load(MODEL_PATHS[0], threads=2, kv="f32", **options)


def least_memory(monkeypatch: pytest.MonkeyPatch, **options: object) -> int:
    """The free memory, to a MiB, with which it just runs."""
    low, high = 0, 2**20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            load_with(middle * MIB, monkeypatch, **options)
            high = middle
        except MemoryLimit:
            low = middle
    return high * MIB


def test_one_context_leaves_room_for_all_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = load_with(2**40, monkeypatch, ctx=2048, max_sequences=1)
    context = engine.info.kv_bytes
    needed = context + engine.info.buffer_bytes
    least = least_memory(monkeypatch, ctx=2048, max_sequences=1)
    partials = 16 * MIB
    assert 0.95 * least - MIB >= needed + partials
    assert least - needed <= 0.05 * least + partials + 4 * MIB  # and little more is kept free
    cached = least_memory(monkeypatch, ctx=2048, max_sequences=1, cache_dir=str(tmp_path))
    assert cached - least >= 64 * MIB  # blocks that wait for the disk


def test_a_large_machine_keeps_little_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 8 * 2**30
    engine = load_with(free, monkeypatch, ctx=2048, max_sequences=2000)
    quarter = (free - engine.info.buffer_bytes) / 4
    assert quarter - 75 * MIB < engine.info.kv_bytes < quarter - 64 * MIB  # of 256 MiB and a little
