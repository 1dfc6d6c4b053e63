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
SCOPE_KEY = "samovar.record"

_log = logging.getLogger("samovar.server")


@dataclass(slots=True)
class RequestRecord:
    """What becomes known of a request while it is served.  Event loop only.

    first_token_at: a time.monotonic() moment.
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

    def note(self, prompt: int, delta: Delta) -> None:
        """Takes the latest delta of one of the request's prompts."""
        if delta.tokens and self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.tally.note(prompt, delta.choice, delta.usage)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason

    def failed(self, error: Exception) -> None:
        """Takes an error that nobody will see as a status, and logs it if it is ours."""
        self.status = public_error(error).status
        if isinstance(error, GenerationFailed):
            _log.error("%s %s failed: %s", self.method, self.path, error)
        elif not isinstance(error, SamovarError):
            _log.error("%s %s failed", self.method, self.path, exc_info=error)

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
        )


class Recorded:
    """Wraps an app: gives it a RequestRecord in the scope, and answers what it raises."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request.  Nothing that the app raises leaves this method."""
        headers = Headers(scope=scope)
        record = RequestRecord(
            client=_client(scope),
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
            if not started:
                await error_response(shutting_down())(scope, receive, send_recorded)
            else:
                cut_off(scope)
        except ClientGone:
            if record.status < 400:  # a refusal below us has said better what happened
                record.status = CLIENT_GONE
        except Exception as error:
            record.failed(error)
            if not started:
                await error_response(public_error(error))(scope, receive, send_recorded)
            else:
                cut_off(scope)
        finally:
            log_request(record.log_line())


def new_request_id() -> str:
    """An id for a request that brought none."""
    return f"req_{secrets.token_hex(12)}"


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "-"
