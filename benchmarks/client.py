"""A server to measure, and a client that costs it little: both have the same cores."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORDS = ["river", "stone", "lamp", "garden", "winter", "letter", "engine", "paper", "silver"]
START_TIMEOUT_S = 60
DONE = b"[DONE]"


def prompt(index: int, num_words: int) -> str:
    """A prompt that differs from every other one in its first words already."""
    words = (WORDS[(index * 7 + i * i) % len(WORDS)] for i in range(num_words))
    return f"Tale number {index}: " + " ".join(words)


@contextmanager
def server(model: str, options: list[str]) -> Iterator[str]:
    """Base URL of a server that lives as long as the context; its output goes to a file."""
    command = [sys.executable, "-m", "samovar", "serve", model, "--port", "0", *options]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        started = time.monotonic()
        with log.open("w") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            while not (found := re.search(r"http://127\.0\.0\.1:\d+/v1", log.read_text())):
                if process.poll() is not None or time.monotonic() - started > START_TIMEOUT_S:
                    raise SystemExit("the server did not start:\n" + log.read_text())
                time.sleep(0.01)
            print(f"listening after {time.monotonic() - started:.2f} s", file=sys.stderr)
            yield found[0]
        finally:
            process.terminate()
            process.wait(timeout=60)


class _Stream(asyncio.Protocol):
    """Notes the lines of data of one streamed reply, each with the time of its arrival.

    It only looks for line ends, in all that has come at once, and wakes nobody before the end: a
    client that makes objects of every chunk, as the official library does, takes a tenth of a
    machine with two cores for itself.
    """

    def __init__(self, request: bytes) -> None:
        self.lines: list[tuple[float, bytes]] = []
        self.is_whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.last = b""  # line that holds anything, whole or not
        self._rest = b""
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self.lines.append((at, line.removeprefix(b"data: ")))
            self.last = line or self.last
        self.last = self._rest or self.last
        if self._is_done:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_whole.set_result(self._is_done)

    @property
    def _is_done(self) -> bool:
        return bool(self.lines) and self.lines[-1][1] == DONE


async def events(url: str, path: str, body: Mapping[str, Any]) -> list[tuple[float, bytes]]:
    """The lines of data of a streamed reply, each with the time at which it arrived."""
    parts = urlsplit(url)
    content = json.dumps(body).encode()
    head = (
        f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    request = head.encode() + content
    _, stream = await loop.create_connection(lambda: _Stream(request), parts.hostname, parts.port)
    if not await stream.is_whole:
        raise SystemExit(f"the stream ended before its end: {stream.last.decode()}")
    return stream.lines[:-1]


@dataclass(frozen=True, slots=True)
class Reply:
    """When the first and the last piece came, since asking, and what the server counted."""

    first_s: float
    last_s: float
    prompt_tokens: int
    completion_tokens: int


async def complete(url: str, text: str, num_tokens: int, fields: Mapping[str, Any]) -> Reply:
    """One streamed greedy completion; `fields` are added to the request."""
    body = {
        "prompt": text,
        "max_tokens": num_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    started = time.monotonic()
    times = []
    usage: dict[str, Any] = {}
    for at, data in await events(url, "/completions", body):
        if b'"text"' in data:
            times.append(at - started)
        if b'"usage":{' in data:  # in a chunk of its own, or in the last one with text
            usage = json.loads(data)["usage"]
    return Reply(times[0], times[-1], usage["prompt_tokens"], usage["completion_tokens"])


async def get(url: str) -> float:
    """Seconds that a GET takes, from connecting to the last byte."""
    parts = urlsplit(url)
    started = time.monotonic()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    reply = await reader.read()
    writer.close()
    if not reply.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{url}: {reply[:200].decode()}")
    return time.monotonic() - started
