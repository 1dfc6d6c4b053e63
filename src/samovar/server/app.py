"""The ASGI application: the table of paths, and the layers around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from samovar import __version__
from samovar.config import Settings
from samovar.server.auth import Keys
from samovar.server.chat import chat_completions
from samovar.server.completions import completions
from samovar.server.errors import HttpError, JsonResponse, shutting_down
from samovar.server.exchange import Exchange
from samovar.server.health import health
from samovar.server.host import ModelHost
from samovar.server.models import get_model, list_models
from samovar.server.origin import CorsHeaders, OriginPolicy
from samovar.server.record import SCOPE_KEY, Recorded
from samovar.server.unbuilt import unbuilt_endpoint

Endpoint = Callable[[Exchange], Awaitable[None]]


async def index(exchange: Exchange) -> None:
    """What this is and where to go on."""
    body = {
        "name": "samovar",
        "version": __version__,
        "endpoints": sorted(
            f"/v1{path}{'{id}' * path.endswith('/')}" for path in ROUTES if path not in OUTSIDE_V1
        ),
        "health": "/health",
    }
    await exchange.reply(JsonResponse(body))


# Without /v1 and without a slash at the end; both may be there.  A path that ends in / here
# stands for the subtree below it.
ROUTES: Mapping[str, Mapping[str, Endpoint]] = {
    "/": {"GET": index},
    "/chat/completions": {"POST": chat_completions},
    "/completions": {"POST": completions},
    "/health": {"GET": health},
    "/models": {"GET": list_models},
    "/models/": {"GET": get_model},
}
OUTSIDE_V1 = frozenset({"/", "/health"})
OPEN_PATHS = frozenset({"/health"})  # no key needed


def create_app(host: ModelHost, settings: Settings) -> ASGIApp:
    """The application that serves the host's model.

    Each layer is plain ASGI: a layer with a task of its own would hide the client's disconnect.
    """
    origins = OriginPolicy(settings.cors, (*settings.allowed_host, settings.host))
    return CorsHeaders(Recorded(Gate(host, settings, origins)), origins)


class Gate:
    """Checks whose page and which key it is, and hands the request to its endpoint."""

    def __init__(self, host: ModelHost, settings: Settings, origins: OriginPolicy) -> None:
        self._host = host
        self._settings = settings
        self._origins = origins
        self._keys = Keys(settings.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request.  Raises SamovarError for whatever is refused."""
        headers = Headers(scope=scope)
        self._origins.check(headers, scope["http_version"])
        path, methods, tail = find(scope["path"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        exchange = Exchange(
            scope=scope,
            receive=receive,
            send=send,
            headers=headers,
            record=scope[SCOPE_KEY],
            host=self._host,
            settings=self._settings,
            tail=tail,
        )
        if method == "OPTIONS" and methods:
            # Before the key: a browser asks this without one.
            answer = {"allow": _allow(methods), **self._origins.preflight_headers(headers)}
            await exchange.reply(Response(status_code=204, headers=answer))
            return
        if path not in OPEN_PATHS:
            if self._host.draining:
                raise shutting_down()
            owner = self._keys.check(headers)
            if not self._settings.share_cache:
                exchange = replace(exchange, owner=owner)
        if not methods:
            asked = f"{scope['method']} {scope['path'][:200]}"
            wrong = unbuilt_endpoint(path) or "Unknown path"
            raise HttpError(
                404, f"{wrong}: {asked}. GET / lists what there is.", code="unknown_url"
            )
        if method not in methods:
            allow = _allow(methods)
            raise HttpError(
                405,
                f"{scope['method']} is not allowed for {scope['path'][:200]}; use {allow}.",
                headers={"allow": allow},
            )
        await methods[method](exchange)


def find(path: str) -> tuple[str, Mapping[str, Endpoint], str]:
    """The path as it stands in the table, its methods, and the rest below a subtree."""
    if path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    path = path.rstrip("/") or "/"
    if path in ROUTES:
        return path, ROUTES[path], ""
    for subtree, methods in ROUTES.items():
        if subtree.endswith("/") and subtree != "/" and path.startswith(subtree):
            return subtree, methods, path.removeprefix(subtree)
    return path, {}, ""


def _allow(methods: Mapping[str, Endpoint]) -> str:
    names = {*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
    return ", ".join(sorted(names))
