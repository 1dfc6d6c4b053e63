"""One request as the endpoints see it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from samovar.config import Settings
from samovar.server.host import ModelHost
from samovar.server.limits import read_body
from samovar.server.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, the way back to its client, and what it may ask.

    tail: the rest of the path, where an endpoint serves a whole subtree.
    """

    scope: Scope
    receive: Receive
    send: Send
    headers: Headers
    record: RequestRecord
    host: ModelHost
    settings: Settings
    tail: str = ""

    async def body(self) -> bytes:
        """The body, at most as long as allowed."""
        return await read_body(self.headers, self.receive)

    async def reply(self, response: Response) -> None:
        """Sends a whole reply."""
        await response(self.scope, self.receive, self.send)
