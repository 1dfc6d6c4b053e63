"""Whose web pages may talk to the server: the Host and Origin headers, and CORS.

A page of any site can make its visitor's browser post to a loopback address, and can point a
name of its own at one (DNS rebinding). So the Host must be an address, a loopback name or a name
that was allowed, and an Origin must be the server's own or one that was allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from samovar.errors import ForbiddenError
from samovar.server.errors import HttpError

DEFAULT_PORTS = {"http": 80, "https": 443}
EXPOSED_HEADERS = "x-request-id, x-seed, x-ignored-fields, retry-after"
PREFLIGHT_MAX_AGE_S = 600


class OriginPolicy:
    """Decides about the Host and Origin of a request.

    origins: the values of --cors; `*` allows any.
    hosts: names beyond the loopback's and the machine's own; `*` allows any, `*.example.org`
        those below a domain.
    """

    def __init__(self, origins: Sequence[str], hosts: Sequence[str]) -> None:
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._any_host = "*" in hosts
        self._hosts = {_hostname(host) or host.lower() for host in hosts}
        self._hosts |= {"localhost", socket.gethostname().lower()}
        self._domains = tuple(host[1:] for host in self._hosts if host.startswith("*."))

    def check(self, headers: Headers, http_version: str) -> None:
        """Raises ForbiddenError for a foreign Host or Origin, HttpError for a Host that is none."""
        self._check_host(headers.getlist("host"), http_version)
        origin = headers.get("origin")
        if origin is None or self.allows(origin) or _same_host(origin, headers.get("host", "")):
            return
        raise ForbiddenError(
            f"Web pages of {origin[:200]} may not use this server; start it with --cors to allow "
            "them."
        )

    def allows(self, origin: str) -> bool:
        """Whether --cors names this origin."""
        return self._any_origin or origin.lower() in self._origins

    def cors_headers(self, headers: Headers) -> dict[str, str]:
        """The headers that let a page of an allowed origin read a reply."""
        if not self._origins:
            return {}
        origin = headers.get("origin")
        if origin is None or not self.allows(origin):
            return {"vary": "Origin"}
        return {
            "vary": "Origin",
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED_HEADERS,
        }

    def preflight_headers(self, headers: Headers) -> Mapping[str, str]:
        """The headers that answer a browser's question before it sends the request itself."""
        if "access-control-request-method" not in headers or not self.cors_headers(headers):
            return {}
        answer = {
            "access-control-allow-methods": "GET, POST, OPTIONS",
            "access-control-allow-headers": headers.get(
                "access-control-request-headers", "authorization, content-type, x-api-key"
            ),
            "access-control-max-age": str(PREFLIGHT_MAX_AGE_S),
        }
        if "access-control-request-private-network" in headers:
            answer["access-control-allow-private-network"] = "true"
        return answer

    def _check_host(self, hosts: list[str], http_version: str) -> None:
        if not hosts and http_version == "1.0":
            return  # no browser leaves it out
        if len(hosts) != 1:
            raise HttpError(400, f"A request needs one Host header; this one has {len(hosts)}.")
        name = _hostname(hosts[0])
        if name is None:
            raise HttpError(400, "The Host header is not a host name or address.")
        if not (
            self._any_host
            or name in self._hosts
            or name.endswith((".localhost", *self._domains))
            or _is_address(name)
        ):
            raise ForbiddenError(
                f"This server does not answer to the host name '{name[:200]}'; start it with "
                f"--allowed-host to allow it."
            )


class CorsHeaders:
    """Wraps an app: adds the CORS headers to all of its replies, errors included."""

    def __init__(self, app: ASGIApp, policy: OriginPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        added = self._policy.cors_headers(Headers(scope=scope))

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        await self._app(scope, receive, send_with_cors if added else send)


def _hostname(host: str) -> str | None:
    """The name in a Host header, without port and brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        port_is_valid = parts.port is None or parts.port >= 0  # reading it raises ValueError
    except ValueError:
        return None
    if not port_is_valid or parts.netloc != host.strip() or parts.username is not None:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None


def _same_host(origin: str, host: str) -> bool:
    try:
        page = urlsplit(origin)
        own = urlsplit(f"//{host}")
        default = DEFAULT_PORTS.get(page.scheme)
        # Behind a proxy that ends TLS the scheme is the page's, not ours.
        return (
            default is not None
            and page.hostname is not None
            and page.hostname == own.hostname
            and (page.port or default) == (own.port or default)
        )
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
