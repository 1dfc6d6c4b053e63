"""The servers that soak.py starts, and what can be seen of them from outside."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from soak_client import Connection

START_TIMEOUT_S = 120


class Server:
    """A `samovar serve` in our own process group; its log goes to a file."""

    def __init__(self, model: str, options: list[str], keys: list[str], files: Path) -> None:
        key_file = files.with_suffix(".keys")
        key_file.write_text("\n".join(keys))
        options = ["--port", "0", "--api-key-file", str(key_file), *options]
        self._command = [sys.executable, "-m", "samovar", "serve", model, *options]
        self.log = files.with_suffix(".log")
        self.port = 0

    def start(self, address_space: int = 0) -> None:
        """Starts it and waits until it listens."""

        def limit() -> None:
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        with self.log.open("w") as sink:
            self.process = subprocess.Popen(
                self._command,
                stdout=sink,
                stderr=sink,
                preexec_fn=limit,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},  # else threads reserve space for ever
            )
        started = time.monotonic()
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() - started > START_TIMEOUT_S:
                raise SystemExit("the server did not start:\n" + self.log.read_text())
            time.sleep(0.05)
        self.port = int(found[1])

    def stop(self) -> int:
        """Ends it; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=START_TIMEOUT_S)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def rss(self) -> int:
        """Bytes of resident memory."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGESIZE")

    def cpu_s(self) -> float:
        """Seconds of CPU time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def num_open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def num_threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))


def start_short_of_memory(server: Server, num_blocks: int) -> None:
    """Starts it with as little address space as leaves it about `num_blocks` KV blocks.

    It takes a quarter of what is free.  What it needs beside is found by trying.
    """
    space = 2**30
    for _ in range(6):
        server.start(space)
        planned = re.search(r"KV cache up to (\d+) MB", server.log.read_text())
        assert planned is not None
        block_mb = int(planned[1]) / health_of(server)["blocks_total"]
        excess = int(planned[1]) - num_blocks * block_mb
        if abs(excess) <= 0.1 * num_blocks * block_mb:
            return
        server.stop()
        space -= int(4 * excess * 10**6)
    raise SystemExit("no address space was found that gives the server few blocks")


def health_of(server: Server) -> dict[str, Any]:
    """What /health says."""

    async def get() -> dict[str, Any]:
        connection = Connection(server.port)
        await connection.send("GET", "/health", "no-key")
        answer = await connection.answer()
        await connection.close()
        return dict(answer.body)

    return asyncio.run(get())
