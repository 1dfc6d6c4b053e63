"""Errors as HTTP replies, in the one shape that clients of the OpenAI API read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from samovar.errors import ContextOverflow, QueueFull, SamovarError, Unavailable

DEFAULT_RETRY_AFTER_S = 30
LAST_REPLY = {"connection": "close"}  # on what is said while draining: no more will come
SHUTTING_DOWN = "shutting_down"


class HttpError(SamovarError):
    """A request that fails as HTTP before it means anything: unknown path, body too large."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


class GenerationFailed(SamovarError):
    """The engine gave up on one request: a fault of ours or of the model, never of the client."""

    status = 500
    type = "server_error"
    code = "internal_error"


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


def shutting_down() -> Unavailable:
    """What everybody is told who asks, or still waits, once the server is to end."""
    return Unavailable("The server is shutting down.", code=SHUTTING_DOWN)


def public_error(error: Exception) -> SamovarError:
    """What a client is told of `error`; a fault of ours keeps its details for the log."""
    if isinstance(error, SamovarError):
        return error
    return GenerationFailed("The server had an error while processing your request.")


def error_body(error: SamovarError) -> dict[str, Any]:
    """The JSON object of an error: all four keys, and the message once more as `detail`."""
    message = str(error)
    fields: dict[str, Any] = {
        "message": message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    if isinstance(error, ContextOverflow):
        fields["n_prompt_tokens"] = error.num_prompt_tokens
        fields["n_ctx"] = error.num_ctx
    return {"error": fields, "detail": message}


def error_headers(error: SamovarError) -> dict[str, str]:
    """The headers that tell a client what to do next."""
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    elif error.status in (429, 503):
        after_s = (
            error.retry_after_s
            if isinstance(error, (QueueFull, Unavailable))
            else DEFAULT_RETRY_AFTER_S
        )
        headers["retry-after"] = str(after_s)
    elif error.status == 500:
        headers["x-should-retry"] = "false"  # the same request would fail in the same way
    return headers | LAST_REPLY if error.code == SHUTTING_DOWN else headers


def error_response(error: SamovarError) -> Response:
    """The whole reply for an error."""
    return JsonResponse(error_body(error), error.status, error_headers(error))


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode_json(value: object) -> bytes:
    """JSON in ASCII.

    Some clients split event streams at every line end that Unicode knows (U+0085, U+2028); in
    ASCII there is none inside a value. Lone surrogates survive too.
    """
    return _ENCODER.encode(value).encode("ascii")


class JsonResponse(Response):
    """A reply whose body is JSON."""

    def __init__(
        self, value: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(encode_json(value), status, headers, "application/json")
