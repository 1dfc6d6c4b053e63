"""HTTP below ASGI: what uvicorn's protocol lacks.

It has no limit on headers (431), waits for ever for a request that does not come to its end
(408), and answers what is no HTTP in plain text. Here all of these get the API's error shape.
"""

from __future__ import annotations

import asyncio
import re
from asyncio.events import TimerHandle
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from samovar.log import RequestLog, log_request
from samovar.server.errors import HttpError, encode_json, error_body
from samovar.server.limits import MAX_HEADER_BYTES, RECEIVE_TIMEOUT_S
from samovar.server.record import SCOPE_KEY, new_request_id

_UPGRADE = re.compile(rb"(?i)(?<![^\n])upgrade:")


class HeadersTooLarge(Exception):
    """Raised inside the parser's callbacks, which turn it into a parser error."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    receive_timeout_s = RECEIVE_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._in_request = True  # so that a connection that never sends anything ends too
        self._header_bytes = 0
        self._fed_head_bytes = 0
        self._too_large = False
        self._heard_at = 0.0
        self._silence: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence is not None:
            self._silence.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._in_head:
            data = _without_upgrade(data)
        self._fed_head_bytes = self._fed_head_bytes + len(data) if self._in_head else 0
        super().data_received(data)
        # The parser reports whole headers only: one that never ends is seen here.
        if self._in_head and self._fed_head_bytes > MAX_HEADER_BYTES:
            self._refuse(_headers_too_large())

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
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_request = False
        self._in_head = True
        self._fed_head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser refused."""
        self._refuse(_headers_too_large() if self._too_large else HttpError(400, msg))

    def _count(self, num_bytes: int) -> None:
        self._header_bytes += num_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            self._too_large = True
            raise HeadersTooLarge

    def _watch(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(self.receive_timeout_s, self._check_silence)

    def _check_silence(self) -> None:
        self._silence = None
        if not self._in_request or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._heard_at = self.loop.time()  # we are the ones who do not listen
        left_s = self._heard_at + self.receive_timeout_s - self.loop.time()
        if left_s > 0:
            self._silence = self.loop.call_later(left_s, self._check_silence)
        elif self.headers is None:  # nothing was ever begun
            self.transport.close()
        else:
            self._refuse(HttpError(408, f"Nothing came for {self.receive_timeout_s:g} s."))

    def _refuse(self, error: HttpError) -> None:
        """Answers with an error, unless a reply is on its way already, and closes."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = encode_json(error_body(error))
            head = [
                STATUS_LINE[error.status],
                b"content-type: application/json\r\n",
                b"content-length: %d\r\n" % len(body),
                b"x-request-id: %b\r\n" % new_request_id().encode(),
                b"connection: close\r\n\r\n",
            ]
            self.transport.write(b"".join([*head, body]))
            self._log(error.status)
        self.transport.close()

    def _log(self, status: int) -> None:
        scope: Mapping[str, Any] = {} if self.cycle is None else self.cycle.scope
        record = scope.get(SCOPE_KEY)
        if record is not None and not self.cycle.response_complete:
            record.status = status  # its own log line comes when the app has noticed
        else:
            client = f"{self.client[0]}:{self.client[1]}" if self.client else "-"
            log_request(RequestLog(client, "-", "-", status, duration_s=0.0))


def _without_upgrade(data: bytes) -> bytes:
    """The bytes of a head with any Upgrade header renamed.

    We offer no other protocol, and then the header means nothing; but at the sight of it the
    parser drops the body. Java's own client asks for h2c with every request.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"x-upgrade:", head) + end + rest


def _headers_too_large() -> HttpError:
    return HttpError(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes.")
