"""A server with a tiny real model: over a real socket, and as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Send

from samovar.config import Settings, Source
from samovar.log import RequestLog
from samovar.server.app import create_app
from samovar.server.host import ModelHost
from samovar.server.run import Server, bind

GOLDEN = Path(__file__).parent.parent / "golden"
TINY = GOLDEN / "llama.gguf"  # 2048 tokens of context, a chat template, BOS
TINY_BASE = GOLDEN / "gemma3.gguf"  # no chat template
PATIENCE_S = 60


def settings_for(path: Path = TINY, **options: Any) -> Settings:
    """As `samovar serve PATH` makes them."""
    sources = {"model": Source("flag", "MODEL")}
    return Settings(model=str(path), threads=1, sources=sources, **options)


class Api:
    """A client of an ASGI application; every request runs on one event loop to its end."""

    def __init__(self, settings: Settings, runner: asyncio.Runner) -> None:
        self.host = ModelHost(settings)
        self.run = runner.run
        self.app = create_app(self.host, settings)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://localhost",
        )

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.run(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self.request("POST", path, **options)

    async def call(self, path: str, body: object, send: Send) -> None:
        """Posts as a server would, for clients that httpx cannot imitate."""
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Message:
            return messages.pop() if messages else await asyncio.Event().wait()  # type: ignore

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"host", b"localhost")],
            "http_version": "1.1",
        }
        await self.app(scope, receive, send)

    def assert_alive(self) -> None:
        """No request has brought the engine down."""
        assert self.host.served is None or self.host.served.engine.failure is None

    def close(self) -> None:
        self.assert_alive()
        self.run(self.host.close())
        self.run(self.client.aclose())


@pytest.fixture(scope="session")
def make_api() -> Iterator[Callable[[Settings], Api]]:
    """Makes clients of applications with settings of their own."""
    with asyncio.Runner() as runner, ExitStack() as stack:

        def make(settings: Settings) -> Api:
            api = Api(settings, runner)
            stack.callback(api.close)
            return api

        yield make


@pytest.fixture(scope="session")
def api(make_api: Callable[[Settings], Api]) -> Api:
    """A client of an application whose context is short, so that every reply ends soon."""
    return make_api(settings_for(ctx=96))


class _ListeningServer(Server):
    def __init__(self, host: ModelHost, settings: Settings) -> None:
        super().__init__(host, settings)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listening.set()


@dataclass(frozen=True)
class Running:
    """A server in a thread of its own."""

    host: ModelHost
    address: tuple[str, int]

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=PATIENCE_S)


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    """A server over a real socket, stopped in the end as a signal would stop it."""
    sockets = bind("127.0.0.1", 0)
    host = ModelHost(settings)
    server = _ListeningServer(host, settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets)))
    thread.start()
    try:
        assert server.listening.wait(PATIENCE_S)
        yield Running(host, sockets[0].getsockname())
        assert host.served is None or host.served.engine.failure is None
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        for sock in sockets:
            sock.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """The server that most tests share."""
    with running(settings_for()) as started:
        yield started


class _LogQueue(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[RequestLog] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(line := getattr(record, "samovar_request", None), RequestLog):
            self.lines.put(line)


FindLine = Callable[[Callable[[RequestLog], bool]], RequestLog]


@pytest.fixture
def request_log() -> Iterator[FindLine]:
    """Waits for a log line that a function picks; lines of earlier requests may still come."""
    handler = _LogQueue()
    logger = logging.getLogger("samovar")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def find(wanted: Callable[[RequestLog], bool]) -> RequestLog:
        while not wanted(line := handler.lines.get(timeout=PATIENCE_S)):
            pass
        return line

    yield find
    logger.setLevel(level)
    logger.removeHandler(handler)
