"""A whole reply out of the chunks of a stream: turned into JSON while it grows.

It may hold a million log probabilities. As objects they would take ten times the memory of their
JSON, and whoever encoded them in one go would hold up the streams of all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from samovar.server.errors import encode_json

BLOCK_BYTES = 2**16  # of JSON: joined, sent and waited for at once
BLOCK_PARTS = 1024  # most parts of a block, each some microseconds of work

Chunk = dict[str, Any]


class JsonArray:
    """An array that grows by slices, each of which is kept as its JSON."""

    def __init__(self) -> None:
        self._slices: deque[bytes] = deque()

    def extend(self, values: Sequence[object]) -> None:
        """Adds values; what they are later is no matter."""
        if values:
            self._slices.append(encode_json(values)[1:-1])

    def take(self) -> Iterator[bytes]:
        """The JSON in parts, none of which is kept."""
        yield b"["
        while self._slices:
            yield self._slices.popleft()
            if self._slices:
                yield b","
        yield b"]"


@dataclass(slots=True)
class Choice:
    """What the chunks of one choice have in common in the end.

    texts: its pieces.  logprobs: as its chunks have them, but for arrays, which are JsonArrays.
    """

    texts: list[str] = field(default_factory=list)
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add_logprobs(self, told: Mapping[str, Any]) -> None:
        """Adds those of one chunk."""
        if self.logprobs is None:
            self.logprobs = {k: JsonArray() if isinstance(v, list) else v for k, v in told.items()}
        for name, values in told.items():
            if isinstance(values, list):
                self.logprobs[name].extend(values)


async def collect(
    chunks: AsyncGenerator[Chunk, None], text_of: Callable[[Chunk], str]
) -> tuple[Chunk, dict[int, Choice]]:
    """The last chunk, and the choices by their index, in order.

    text_of: the text that the choice of a chunk brings.
    """
    choices: dict[int, Choice] = {}
    last: Chunk = {}
    async with aclosing(chunks):
        async for last in chunks:
            for part in last["choices"]:
                choice = choices.setdefault(part["index"], Choice())
                choice.texts.append(text_of(part))
                if part["logprobs"] is not None:
                    choice.add_logprobs(part["logprobs"])
                if part["finish_reason"] is not None:
                    choice.finish_reason = part["finish_reason"]
    return last, dict(sorted(choices.items()))


async def encode_whole(value: object) -> list[bytes]:
    """A reply's JSON in blocks; mappings and arrays may hold JsonArrays, iterators are arrays."""
    blocks: list[bytes] = []
    parts: list[bytes] = []
    num_bytes = 0
    for part in _parts(value):
        parts.append(part)
        num_bytes += len(part)
        if num_bytes >= BLOCK_BYTES or len(parts) >= BLOCK_PARTS:
            blocks.append(b"".join(parts))
            parts, num_bytes = [], 0
            await asyncio.sleep(0)
    return [*blocks, b"".join(parts)]


def _parts(value: object) -> Iterator[bytes]:
    if isinstance(value, JsonArray):
        yield from value.take()
    elif isinstance(value, dict):
        named = ((encode_json(name) + b":", child) for name, child in value.items())
        yield from _joined(named, b"{", b"}")
    elif isinstance(value, (list, Iterator)):
        yield from _joined(((b"", child) for child in value), b"[", b"]")
    else:
        yield encode_json(value)


def _joined(items: Iterable[tuple[bytes, object]], before: bytes, behind: bytes) -> Iterator[bytes]:
    for name, child in items:
        yield before + name
        yield from _parts(child)
        before = b","
    yield behind if before == b"," else before + behind


async def send_whole(send: Send, blocks: Sequence[bytes], headers: Mapping[str, str]) -> None:
    """Sends a reply of status 200, no faster than it is read."""
    headers = {
        **headers,
        "content-length": str(sum(map(len, blocks))),
        "content-type": "application/json",
    }
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
        }
    )
    for block in blocks[:-1]:
        await send({"type": "http.response.body", "body": block, "more_body": True})
        await asyncio.sleep(0)  # sending does not wait where the system takes it all
    await send({"type": "http.response.body", "body": blocks[-1], "more_body": False})
