"""A prompt whose blocks are kept on disk, and what tests of that have in common."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_cases import MODEL_PATHS, load, replies
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import BLOCK_TOKENS

PROMPT = tuple(30 + i * 7 % 200 for i in range(5 * BLOCK_TOKENS + 9))


REQUEST = Request(
    id="r",
    prompt=PROMPT,
    sampling=SamplingParams(temperature=1.0, seed=3),
    max_tokens=40,
)


# The tests' helpers are on the path.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


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
    """Runs a script in a process of its own with `arguments`."""
    return [sys.executable, "-c", script, *map(str, arguments)]


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


def numbered(number: int) -> Request:
    """A request like the others, but for its first token."""
    return replace(REQUEST, id=str(number), prompt=(number, *PROMPT))


def short(number: int, num_blocks: int = 1) -> Request:
    """A request of one token whose prompt fills so many blocks and a little of the next."""
    prompt = (number, *PROMPT[: num_blocks * BLOCK_TOKENS])
    return replace(REQUEST, id=str(number), prompt=prompt, max_tokens=1)


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


def settled(engine: Engine, *wanted: Request) -> None:
    """Runs requests one after the other, each until the disk has what it left."""
    for request in wanted:
        replies(engine, [request])
        written(engine)
