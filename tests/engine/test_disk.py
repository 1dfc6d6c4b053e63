"""Cached blocks on disk: found after a restart, by whom they are for, by several processes."""

from __future__ import annotations

import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from disk_cases import (
    ENVIRONMENT,
    PROMPT,
    REQUEST,
    block_files,
    command,
    numbered,
    run,
    start,
)
from engine_cases import MODEL_PATHS, load
from samovar.engine.blocks import BLOCK_TOKENS
from samovar.errors import SettingError


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


SHARING = """
import logging, os, sys, time
from dataclasses import replace
from pathlib import Path
from disk_cases import PROMPT, REQUEST, run, start
from engine_cases import replies
logging.basicConfig(level=logging.WARNING, format="%(message)s")
os.getpid = lambda: 1  # as it is in each container
replace_file = os.replace
os.replace = lambda *names: (time.sleep(0.003), replace_file(*names))  # a disk that takes its time
engine = start(Path(sys.argv[1]), cache_disk_gb=float(sys.argv[2]))
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


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SettingError, match="--cache-dir"):
        start(file)
