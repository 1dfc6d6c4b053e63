"""The outermost layer: every request gets an id, every error an answer, and the log one line."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samovar.engine.request import Delta
from samovar.errors import SamovarError
from samovar.log import RequestLog, log_request
from samovar.server.errors import (
    ClientGone,
    GenerationFailed,
    error_response,
    public_error,
    shutting_down,
)
from samovar.server.limits import sane_request_id
from samovar.server.sse import cut_off
from samovar.server.usage import Tally

CLIENT_GONE = 499
PROBES_LOGGED_EVERY_S = 60.0
SCOPE_KEY = "samovar.record"

_log = logging.getLogger("samovar.server")


@dataclass(slots=True)
class RequestRecord:
    """What becomes known of a request while it is served.  Event loop only.

    first_token_at: a time.monotonic() moment.
    error: what the client was told when it was refused or failed.
    is_probe: whether a program asks this again and again, so that not every line is worth reading.
    """

    client: str
    method: str
    path: str
    request_id: str
    started_at: float = field(default_factory=time.monotonic)
    status: int = CLIENT_GONE
    seed: int | None = None
    finish_reason: str | None = None
    ignored_fields: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    first_token_at: float | None = None
    error: SamovarError | None = None
    is_probe: bool = False

    def note(self, prompt: int, delta: Delta) -> None:
        """Takes the latest delta of one of the request's prompts."""
        if delta.tokens and self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.tally.note(prompt, delta.choice, delta.usage)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason

    def failed(self, error: Exception) -> SamovarError:
        """Takes why the request fails; what its client is told.  Logs a fault of ours by itself."""
        self.error = public_error(error)
        self.status = self.error.status
        if isinstance(error, GenerationFailed):
            _log.error("%s %s failed (%s): %s", self.method, self.path, self.request_id, error)
        elif not isinstance(error, SamovarError):
            _log.error("%s %s failed (%s)", self.method, self.path, self.request_id, exc_info=error)
        return self.error

    def log_line(self) -> RequestLog:
        """The figures of the whole request; those of several replies are summed."""
        tally = self.tally
        first = self.first_token_at
        return RequestLog(
            client=self.client,
            method=self.method,
            path=self.path,
            status=self.status,
            duration_s=time.monotonic() - self.started_at,
            prompt_tokens=tally.prompt_tokens if tally else None,
            reply_tokens=tally.completion_tokens if tally else None,
            cached_tokens=tally.cached_tokens if tally else None,
            queue_s=tally.queue_s,
            ttft_s=None if first is None else first - self.started_at,
            tokens_per_s=tally.tokens_per_s,
            seed=self.seed,
            finish_reason=self.finish_reason,
            ignored_fields=self.ignored_fields,
            request_id=self.request_id,
            error_code=None if self.error is None else self.error.code,
            error_param=None if self.error is None else self.error.param,
            error_message=None if self.error is None else str(self.error),
        )


class Recorded:
    """Wraps an app: gives it a RequestRecord in the scope, and answers what it raises.

    Of probes that succeed one a minute is logged: there may be one a second, all day.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._probe_logged_at = -PROBES_LOGGED_EVERY_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request.  Nothing that the app raises leaves this method."""
        headers = Headers(scope=scope)
        record = RequestRecord(
            client=client_of(scope.get("client")),
            method=scope["method"],
            path=scope["path"],
            request_id=sane_request_id(headers.get("x-request-id")) or new_request_id(),
        )
        scope[SCOPE_KEY] = record
        started = False

        async def send_recorded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        except asyncio.CancelledError:
            # The server ends and had no other way to tell us, as while the model was loading.
            error = record.failed(shutting_down())
            if not started:
                await error_response(error)(scope, receive, send_recorded)
            else:
                cut_off(scope)
        except ClientGone:
            if record.status < 400:  # a refusal below us has said better what happened
                record.status = CLIENT_GONE
        except Exception as fault:
            error = record.failed(fault)
            if not started:
                await error_response(error)(scope, receive, send_recorded)
            else:
                cut_off(scope)
        finally:
            if self._is_worth_a_line(record):
                log_request(record.log_line())

    def _is_worth_a_line(self, record: RequestRecord) -> bool:
        if not record.is_probe or record.status != 200:
            return True
        now = time.monotonic()
        if now - self._probe_logged_at < PROBES_LOGGED_EVERY_S:
            return False
        self._probe_logged_at = now
        return True


def new_request_id() -> str:
    """An id for a request that brought none."""
    return f"req_{secrets.token_hex(12)}"


def client_of(address: tuple[str, int] | None) -> str:
    """The other end of a connection, as the log names it."""
    return f"{address[0]}:{address[1]}" if address else "-"
