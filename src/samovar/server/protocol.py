"""HTTP below ASGI: what uvicorn's protocol lacks.

It has no limit on headers (431), waits for ever for a request that does not come to its end
(408), and answers what is no HTTP in plain text. Here all of these get the API's error shape.
It also waits for ever for a client that does not read: such a connection is ended.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from asyncio.events import TimerHandle
from collections.abc import Mapping
from functools import partial
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from samovar.log import log_request
from samovar.server.errors import HttpError, encode_json, error_body
from samovar.server.limits import MAX_HEADER_BYTES, RECEIVE_TIMEOUT_S, SEND_TIMEOUT_S
from samovar.server.record import SCOPE_KEY, RequestRecord, client_of, new_request_id
from samovar.server.sse import CUT_OFF


class HeadersTooLarge(Exception):
    """Raised inside the parser's callbacks, which turn it into a parser error."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    receive_timeout_s = RECEIVE_TIMEOUT_S
    send_timeout_s = SEND_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._in_request = True  # so that a connection that never sends anything ends too
        self._header_bytes = 0
        self._fed_head_bytes = 0
        self._too_large = False
        self._upgrading = False
        self._served: RequestResponseCycle | None = None
        self._heard_at = 0.0
        self._silence: TimerHandle | None = None
        self._num_unsent = 0  # bytes, when last looked at
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Writing counts as paused from the first byte that the system does not take: so every
        # wait for a client begins with pause_writing, also one at the end of a reply.
        transport.set_write_buffer_limits(high=0)
        self._heard_at = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)
        # uvicorn tells only the last request, and this may be one that waited behind another.
        self.pipeline.clear()
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._heard_at = self.loop.time()
        try:
            while data:
                self._fed_head_bytes = self._fed_head_bytes + len(data) if self._in_head else 0
                data = self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        # The parser reports whole headers only: one that never ends is seen here.
        if self._in_head and self._fed_head_bytes > MAX_HEADER_BYTES:
            self._refuse(_headers_too_large())

    def _feed(self, data: bytes) -> bytes:
        """Gives data to the parser; what it has to be given next.

        The parser stops behind a head with an Upgrade header, as if no body followed. We offer
        no other protocol, and then the header means nothing (Java's own client asks for h2c with
        every request): the head is parsed once more without it.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            rest = data[stopped.args[0] :]
            if not self._upgrading:
                return rest
            head = self._head_without_upgrade()
            # A new parser: behind a head that ends the connection the old one takes nothing more.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return head + rest
        return b""

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_request = True
        self._header_bytes = 0
        self._watch()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._upgrading = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._upgrading:
            return
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._in_request = False
        self._in_head = True
        self._fed_head_bytes = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._served = cycle
        cycle.scope["extensions"] = {CUT_OFF: {"close": partial(self._cut_off, cycle)}}
        if cycle.scope["http_version"] == "1.0":
            app = _Unframed(cycle, app)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _cut_off(self, cycle: RequestResponseCycle) -> None:
        """Closes behind what has been written, which is no whole reply and is not made one."""
        cycle.disconnected = True
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser refused."""
        self._refuse(_headers_too_large() if self._too_large else HttpError(400, msg))

    def _count(self, num_bytes: int) -> None:
        self._header_bytes += num_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            self._too_large = True
            raise HeadersTooLarge

    def pause_writing(self) -> None:
        """Waits for the client to read, but not for ever."""
        super().pause_writing()
        self._num_unsent = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.send_timeout_s, self._check_unread)

    def resume_writing(self) -> None:
        """Goes on: all has been read, or is in the system's hands."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _check_unread(self) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent == self._num_unsent:
            # Closing would wait for the client to read the rest, and the system even after abort.
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
            return
        self._num_unsent = num_unsent
        self._unread = self.loop.call_later(self.send_timeout_s, self._check_unread)

    def _watch(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(self.receive_timeout_s, self._check_silence)

    def _check_silence(self) -> None:
        self._silence = None
        if not self._in_request or self.transport.is_closing():
            return
        if self.flow.read_paused or (self._in_head and self._is_answering):
            self._heard_at = self.loop.time()  # it is our turn
        left_s = self._heard_at + self.receive_timeout_s - self.loop.time()
        if left_s > 0:
            self._silence = self.loop.call_later(left_s, self._check_silence)
        elif self.headers is None:  # nothing was ever begun
            self.transport.close()
        else:
            self._refuse(HttpError(408, f"Nothing came for {self.receive_timeout_s:g} s."))

    @property
    def _is_answering(self) -> bool:
        """Whether a request that has been received has not got all of its reply."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        """Closes; answers with an error before that if the client expects no other reply now."""
        if self.transport.is_closing():
            return
        if self._in_head:
            expected = not self._is_answering
        else:  # the fault is in the body of the last request, which may still wait for its turn
            expected = not (self.cycle.response_started or self.pipeline)
        if expected:
            record = self._record_under_way()
            is_served = record is not None
            record = record or RequestRecord(client_of(self.client), "-", "-", new_request_id())
            body = encode_json(error_body(error))
            head = [
                STATUS_LINE[error.status],
                b"content-type: application/json\r\n",
                b"content-length: %d\r\n" % len(body),
                b"x-request-id: %b\r\n" % record.request_id.encode(),
                b"connection: close\r\n\r\n",
            ]
            self.transport.write(b"".join([*head, body]))
            record.failed(error)
            if not is_served:
                log_request(record.log_line())
        self.transport.close()

    def _record_under_way(self) -> RequestRecord | None:
        """That of a request which the app serves: its own line comes when the app has noticed."""
        if self.cycle is None or self.cycle.response_complete:
            return None
        scope: Mapping[str, Any] = self.cycle.scope
        record: RequestRecord | None = scope.get(SCOPE_KEY)
        return record


class _Unframed:
    """Wraps the app for one HTTP/1.0 request: a reply of unknown length lasts until the close.

    uvicorn would send it in chunks, of which HTTP/1.0 knows nothing (RFC 9112, 6.1).
    """

    def __init__(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        self._cycle = cycle
        self._app = app
        self._send: Send | None = None
        self._is_unframed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        await self._app(scope, receive, self._send_unframed)

    async def _send_unframed(self, message: Message) -> None:
        assert self._send is not None
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            if b"content-length" not in names:
                self._is_unframed = True
                self._cycle.chunked_encoding = False
                self._cycle.expected_content_length = sys.maxsize
        elif self._is_unframed and not message.get("more_body", False):
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def _headers_too_large() -> HttpError:
    return HttpError(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes.")
