"""A server that runs out of memory gives errors, and the right replies beside and after them."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

MODEL = Path(__file__).parent.parent / "golden/llama.gguf"
SMALL = {"prompt": "Once upon a time", "max_tokens": 30, "n": 2, "logprobs": 2}
LARGE = {"prompt": "word " * 500_000}


def squeeze(pid: int, room: int) -> None:
    """Lets the process map so many bytes more than it has; -1 takes the limit away."""
    if room < 0:
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        space = pages * resource.getpagesize() + room
        resource.prlimit(pid, resource.RLIMIT_AS, (space, resource.RLIM_INFINITY))


async def ask(client: httpx.AsyncClient, body: dict[str, object]) -> object:
    """The choices of the reply; None for an error or an end of the connection."""
    try:
        response = await client.post("/v1/completions", json=body)
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError:
        return None
    if response.status_code == 200:
        return response.json()["choices"]
    assert response.status_code >= 400
    return None


@pytest.mark.parametrize("room", [0, 4 * 2**20, 20 * 2**20])
def test_memory_that_runs_out_while_serving(room: int, tmp_path: Path) -> None:
    # RUST_BACKTRACE: with backtraces a Rust library that gets no memory waits for itself.
    environment = {**os.environ, "RUST_BACKTRACE": "0", "SAMOVAR_CACHE_HOME": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("w") as sink:
        server = subprocess.Popen(
            [sys.executable, "-m", "samovar", "serve", str(MODEL), "--port", "0", "--ctx", "512"],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            env=environment,
        )
    assert server.stdout is not None

    async def attack(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            right = await ask(client, SMALL)
            assert right is not None
            squeeze(server.pid, room)
            bodies = [SMALL, SMALL, LARGE] * 8
            replies = await asyncio.gather(*(ask(client, body) for body in bodies))
            assert all(reply in (None, right) for reply in replies)
            if server.poll() is None:
                squeeze(server.pid, -1)
                assert await ask(client, SMALL) in (None, right)

    try:
        with server.stdout:
            for line in server.stdout:
                if found := re.search(r"(http://127\.0\.0\.1:\d+)/v1", line):
                    break
            else:
                pytest.fail("the server did not start")
            asyncio.run(attack(found[1]))
            server.send_signal(signal.SIGTERM)
        # Where a library ended the process there was no memory for anything else.
        assert server.wait(60) == 0 or "memory" in log.read_text().lower()
    finally:
        server.kill()
        server.wait()
