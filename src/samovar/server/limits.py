"""What a request may be made of: sizes and times, and the reading of its body within them."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import Receive

from samovar.server.errors import ClientGone, HttpError

MAX_BODY_BYTES = 8 * 2**20
MAX_HEADER_BYTES = 16 * 2**10
RECEIVE_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 60.0  # within which a client must take something of what waits for it
MAX_ECHO_LOGPROBS = 2**20  # about 40 MB of a reply's JSON
KEEP_ALIVE_S = 75  # idle connections between two requests; longer than clients' pools keep theirs

_SANE_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,128}")


async def read_body(headers: Headers, receive: Receive) -> bytes:
    """The body of a request.  Raises HttpError 413 beyond the limit, ClientGone if it is cut."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def sane_request_id(value: str | None) -> str | None:
    """A client's own request id if it can be echoed and logged: printable ASCII, not long."""
    return value if value is not None and _SANE_REQUEST_ID.fullmatch(value) else None


def _too_large() -> HttpError:
    return HttpError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
