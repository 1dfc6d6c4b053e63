"""Server-sent events: a stream of chunks on the wire, kept alive while the model is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.types import Scope, Send

from samovar.server.errors import encode_json

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
PING_INTERVAL_S = 10.0
MOST_SENT_AT_ONCE = 8  # events, some tens of microseconds of work each
CUT_OFF = "samovar.cut_off"  # ASGI extension; its "close" ends the connection
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def cut_off(scope: Scope) -> None:
    """Ends the connection behind what has been sent of a reply, which nobody takes for whole."""
    extension: Mapping[str, Callable[[], None]] = scope.get("extensions", {}).get(CUT_OFF, {})
    if extension:
        extension["close"]()


class EventStream:
    """The writing side of one stream.  Entered, it sends the headers and a comment at once.

    While it is open a comment follows every 10 s of silence, so that neither proxies nor clients
    give up during a long prompt.
    """

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = {**HEADERS, **headers}
        self._last_sent = 0.0
        self._pinger: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(k.encode(), v.encode("latin-1")) for k, v in self._headers.items()],
            }
        )
        await self._write(PING)
        self._pinger = asyncio.create_task(self._ping())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop_pinging()

    async def data(self, value: Mapping[str, Any]) -> None:
        """Sends one event."""
        await self._write(b"data: %b\n\n" % encode_json(value))

    async def end(self) -> None:
        """Sends `[DONE]` and ends the reply."""
        await self._stop_pinging()
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def break_off(self, value: Mapping[str, Any], scope: Scope) -> None:
        """Sends a last event and ends the connection, but not the reply.

        So nobody can take it for a whole one, not even a client that skips errors in a stream.
        """
        await self._stop_pinging()
        await self.data(value)
        cut_off(scope)

    async def send_all(self, chunks: AsyncGenerator[dict[str, Any], None]) -> None:
        """Sends every chunk as an event, and closes the generator."""
        async with aclosing(chunks):
            num_sent = 0
            async for chunk in chunks:
                await self.data(chunk)
                num_sent += 1
                # Neither of the two waits while there is more to send, and the loop has others.
                if num_sent % MOST_SENT_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _write(self, body: bytes) -> None:
        self._last_sent = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _stop_pinging(self) -> None:
        assert self._pinger is not None
        self._pinger.cancel()
        await asyncio.wait((self._pinger,))

    async def _ping(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            silent_s = clock() - self._last_sent
            if silent_s >= PING_INTERVAL_S:
                await self._write(PING)
            else:
                await asyncio.sleep(PING_INTERVAL_S - silent_s)
