"""`serve`: from settings to a listening server, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import nullcontext
from functools import partial
from types import FrameType

import uvicorn

from samovar import log
from samovar.config import Settings
from samovar.errors import SettingError
from samovar.hub import Interrupt
from samovar.server.app import create_app
from samovar.server.banner import banner
from samovar.server.host import ModelHost, ProgressBar, load_model
from samovar.server.limits import KEEP_ALIVE_S
from samovar.server.protocol import Protocol

BACKLOG = 2048
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_WORDS_S = 1  # for cut-off replies to be told so


def serve(settings: Settings, *, progress_bar: ProgressBar = nullcontext) -> int:
    """Serves until a signal comes; the exit code.

    progress_bar: a context that yields what draws the progress of a download or a load, or None.

    Raises SettingError for an address that cannot be used, and what loading the model raises.
    """
    log.set_up(settings.log_format)
    # Its warnings are about writing to clients that have just gone away.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    sockets = bind(settings.host, settings.port)
    interrupt = Interrupt()
    load = partial(load_model, progress_bar=progress_bar, interrupt=interrupt)
    try:
        asyncio.run(Server(ModelHost(settings, load), settings, interrupt).serve(sockets))
    finally:
        for each in sockets:
            each.close()
    return 0


def bind(host: str, port: int) -> list[socket.socket]:
    """Bound sockets, not yet listening: a port that is taken is noticed before a model is loaded.

    `localhost` means the IPv4 loopback and, where there is one, the IPv6 loopback.
    """
    if host == "localhost":
        first = _bind("127.0.0.1", port)
        with contextlib.suppress(SettingError):
            return [first, _bind("::1", first.getsockname()[1])]
        return [first]
    return [_bind(host, port)]


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
    except OSError:
        raise SettingError(
            f"--host {host} is neither an IP address nor localhost.", param="host"
        ) from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from None
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> SettingError:
    reason = error.strerror or str(error)
    return SettingError(f"Cannot listen on {host} port {port}: {reason}.", param="port")


class Server(uvicorn.Server):
    """uvicorn's server with our start-up lines and our end.

    The first signal lets running replies finish; meanwhile it goes on listening, so that a load
    balancer learns from /health that it ends, and refuses all else.  A second one ends at once.
    interrupt: ends the download that loading the model may have begun.
    """

    def __init__(
        self, host: ModelHost, settings: Settings, interrupt: Interrupt | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(host, settings),
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )
        self._host = host
        self._settings = settings
        self._interrupt = interrupt or Interrupt()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Loads the model unless that has time, listens, and says so."""
        assert sockets is not None
        served = await self._host.load() if self._settings.preload else None
        try:
            await super().startup(sockets)
        except OSError as error:  # another process came between binding and listening
            raise _cannot_listen(self._settings.host, self._settings.port, error) from None
        _print(banner(self._settings, self._host.id, served, sockets[0].getsockname()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains: nothing new is begun, running replies get their time, the rest is cut off."""
        self._host.drain()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            log.LOGGER.info("shutting down; requests still running: %d", len(tasks))
            await asyncio.wait(tasks, timeout=self._settings.drain_timeout)
        await self._host.close()
        await super().shutdown(sockets)
        if self._host.state == "loading":
            self._interrupt.set()
            if tasks := set(self.server_state.tasks):  # they have been cancelled by now
                await asyncio.wait(tasks, timeout=LAST_WORDS_S)
            _end_now(0)  # nothing else of loading can be interrupted, and nobody waits for it

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles the signals; unlike uvicorn it does not raise them again, so that we exit 0."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals belong to whoever has the main thread
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes the first signal; ends the process at the second, or before it listens."""
        if sig == signal.SIGINT:
            log.end_line()
        if self.should_exit:
            _end_now(128 + sig)
        self.should_exit = True
        if not self.started:
            self._interrupt.set()
            if sig != signal.SIGINT:
                _end_now(0)
            log.last_words("interrupted", self._settings.log_format)
            _end_now(128 + sig)


def _end_now(code: int) -> None:
    """Ends the process.  What is printed was flushed at once: in a signal handler it may block."""
    os._exit(code)


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # whoever started us may not listen
        print(text, flush=True)
