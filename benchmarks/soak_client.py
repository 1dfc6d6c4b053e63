"""A small HTTP client for soak.py that can read slowly, stop reading, and vanish."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
SMALL_BUFFER = 2048  # bytes that the kernel keeps for a slow reader


@dataclass(frozen=True)
class Answer:
    """Status, headers in lower case, and what the body holds, decoded."""

    status: int
    headers: dict[str, str]
    body: Any = None


class Broken(Exception):
    """The connection ended before the answer did."""


class Connection:
    """One connection to a server on this machine.

    bytes_per_s: how fast the answer is read; 0 reads as fast as it comes.
    """

    def __init__(self, port: int, *, bytes_per_s: int = 0) -> None:
        self._port = port
        self.bytes_per_s = bytes_per_s
        self.small_buffer = bytes_per_s > 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, key: str, body: bytes = b"") -> None:
        """Connects unless it is connected, and sends one request."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        await self.send_raw(head.encode() + body)

    async def send_raw(self, data: bytes) -> None:
        """Connects unless it is connected, and sends bytes."""
        if self._writer is None:
            sock = socket.socket()
            sock.setblocking(False)
            if self.small_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            await asyncio.get_running_loop().sock_connect(sock, (HOST, self._port))
            limit = 2**12 if self.small_buffer else 2**22
            self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=limit)
        self._writer.write(data)
        with suppress(ConnectionError):  # an early refusal is still to be read
            await self._writer.drain()

    async def head(self) -> Answer:
        """Status and headers of the answer."""
        try:
            status = int((await self._line()).split(b" ")[1])
        except (IndexError, ValueError):
            raise Broken("no status line") from None
        headers = {}
        while line := (await self._line()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return Answer(status, headers)

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body of an answer, piece by piece."""
        if answer.headers.get("transfer-encoding") == "chunked":
            while size := int((await self._line()).strip() or b"0", 16):
                yield await self._exactly(size)
                await self._exactly(2)
            await self._exactly(2)
        else:
            yield await self._exactly(int(answer.headers.get("content-length", 0)))
        if answer.headers.get("connection") == "close":
            await self.close()

    async def whole(self, answer: Answer) -> Answer:
        """The answer with its body as JSON."""
        data = b"".join([piece async for piece in self.pieces(answer)])
        return Answer(answer.status, answer.headers, json.loads(data) if data else None)

    async def answer(self) -> Answer:
        """The next answer, with its body as JSON."""
        return await self.whole(await self.head())

    async def events(self, answer: Answer) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream up to its [DONE]; raises Broken if that does not come."""
        rest = b""
        done = False
        async for piece in self.pieces(answer):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line == b"data: [DONE]":
                    done = True
                elif line.startswith(b"data: "):
                    yield json.loads(line[6:])
        if not done:
            raise Broken("a stream without [DONE]")

    async def close(self) -> None:
        """Ends the connection politely."""
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None

    def vanish(self) -> None:
        """Ends it at once, with whatever was not read."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += await self._exactly(1) if self.bytes_per_s else await self._read_line()
        return line

    async def _read_line(self) -> bytes:
        assert self._reader is not None
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            raise Broken(str(error)) from error
        if not line.endswith(b"\n"):
            raise Broken("the connection was closed")
        return line

    async def _exactly(self, count: int) -> bytes:
        assert self._reader is not None
        data = b""
        while len(data) < count:
            at_once = count - len(data)
            if self.bytes_per_s:
                at_once = min(at_once, max(1, self.bytes_per_s // 4))
                await asyncio.sleep(at_once / self.bytes_per_s)
            try:
                piece = await self._reader.read(at_once)
            except OSError as error:
                raise Broken(str(error)) from error
            if not piece:
                raise Broken("the connection was closed")
            data += piece
        return data
