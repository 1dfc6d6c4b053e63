"""One request as the endpoints see it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from samovar.config import Settings
from samovar.errors import SamovarError
from samovar.server.host import ModelHost
from samovar.server.limits import read_body
from samovar.server.record import RequestRecord

LARGE_BODY_BYTES = 2**16  # parsing more than this would hold up the streams of others

Parsed = TypeVar("Parsed")


def _uncollected(parser: Callable[[bytes], Parsed], body: bytes) -> Parsed:
    """What `parser` returns or raises, without any search for garbage while it works.

    A body may hold millions of arrays. The more of them there are the longer each search takes,
    and nobody else runs meanwhile: they would take a second. Whichever of several threads finds
    the collector on switches it on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return parser(body)
    except SamovarError as error:
        raise error.with_traceback(None) from None  # whose frames keep all of the body
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, the way back to its client, and what it may ask.

    tail: the rest of the path, where an endpoint serves a whole subtree.
    owner: whose cached prefixes the request may find.
    """

    scope: Scope
    receive: Receive
    send: Send
    headers: Headers
    record: RequestRecord
    host: ModelHost
    settings: Settings
    tail: str = ""
    owner: str = ""

    async def parse(self, parser: Callable[[bytes], Parsed]) -> Parsed:
        """The body, read and parsed.  Raises RequestError, HttpError, ClientGone."""
        body = await read_body(self.headers, self.receive)
        if len(body) <= LARGE_BODY_BYTES:
            return parser(body)
        return await self.host.in_thread(_uncollected, parser, body)

    async def reply(self, response: Response) -> None:
        """Sends a whole reply."""
        await response(self.scope, self.receive, self.send)
