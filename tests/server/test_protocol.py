"""HTTP below the application, over a real socket: limits, silence, nonsense."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from samovar.server.protocol import Protocol

from .conftest import PATIENCE_S, FindLine, Running, running, settings_for

HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def exchange(server: Running, *sent: bytes) -> tuple[int, Any]:
    """Status and body of the reply to raw bytes."""
    with server.connect() as sock:
        for part in sent:
            sock.sendall(part)
        with sock.makefile("rb") as reply:
            return read_reply(reply)


def read_reply(reply: BinaryIO) -> tuple[int, Any]:
    status = int(reply.readline().split()[1])
    headers = {}
    while (line := reply.readline().strip()) != b"":
        name, _, value = line.partition(b": ")
        headers[name.lower()] = value
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"]
    return status, json.loads(reply.read(int(headers[b"content-length"])))


def assert_refused(reply: tuple[int, Any], status: int) -> None:
    assert reply[0] == status
    assert {"message", "type", "param", "code"} == reply[1]["error"].keys()
    assert reply[1]["detail"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 17_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 3_000 + b"\r\n",
        b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 300_000,
    ],
)
def test_headers_too_large(server: Running, head: bytes) -> None:
    assert_refused(exchange(server, head), 431)


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    ],
)
def test_what_is_no_http(server: Running, head: bytes) -> None:
    assert_refused(exchange(server, head), 400)


def test_http_1_0_needs_no_host(server: Running) -> None:
    assert exchange(server, b"GET /health HTTP/1.0\r\n\r\n")[0] == 200


def test_http_1_0_gets_no_chunks(server: Running) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 3, "stream": True}).encode()
    with server.connect() as sock, sock.makefile("rb") as reply:
        sock.sendall(post(body, b"Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, events = reply.read().partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert events.startswith(b": ping\n\ndata: {")
    assert events.endswith(b"}\n\ndata: [DONE]\n\n")


def test_a_large_body_is_refused_and_the_connection_stays(server: Running) -> None:
    with server.connect() as sock, sock.makefile("rb") as reply:
        for framing in (b"Content-Length: 9000000", b"Transfer-Encoding: chunked"):
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n")
            if b"chunked" in framing:
                sock.sendall((b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n") * 140 + b"0\r\n\r\n")
            else:
                sock.sendall(b"x" * 9_000_000)
            assert_refused(read_reply(reply), 413)
        sock.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert read_reply(reply)[0] == 200


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + headers
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_header_costs_no_body(server: Running, size: int, chunked: bool) -> None:
    body = b'{"prompt": "Hello", "max_tokens": 1}'
    request = post(body, UPGRADE)
    if chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        request = request.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        request = request.replace(body, framed)
    sent = request + b"GET /health HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\n" + post(body)
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(sent), size):
            sock.sendall(sent[i : i + size])
        with sock.makefile("rb") as reply:
            first, health, third = [read_reply(reply) for _ in range(3)]
    assert (first[0], health[0], third[0]) == (200, 200, 200)
    assert first[1]["usage"]["completion_tokens"] == third[1]["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    "connection",
    [b"Upgrade, close", b"close, Upgrade", b"keep-alive, close, Upgrade", b"Upgrade, keep-alive"],
)
def test_an_upgrade_header_changes_nothing_about_the_end(
    server: Running, connection: bytes, version: bytes
) -> None:
    body = b'{"prompt": "Hello", "max_tokens": 1}'
    request = post(body, b"Connection: " + connection + b"\r\nUpgrade: h2c\r\n")
    with server.connect() as sock, sock.makefile("rb") as reply:
        sock.sendall(request.replace(b"HTTP/1.1", b"HTTP/" + version))
        assert read_reply(reply)[0] == 200
        if b"close" in connection:
            assert reply.read() == b""


@pytest.mark.parametrize(("target", "status"), [(b"localhost:80", 400), (b"/", 405)])
def test_a_connect_is_refused(server: Running, target: bytes, status: int) -> None:
    head = b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n"
    assert_refused(exchange(server, head), status)


HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.mark.parametrize(
    "behind",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 17_000,
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        HEALTH + b"nonsense\r\n\r\n",
        HEALTH + b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    ],
)
def test_a_fault_never_lands_in_the_reply_to_an_earlier_request(
    server: Running, behind: bytes, request_log: FindLine
) -> None:
    body = json.dumps({"prompt": [[i] for i in range(3, 35)], "stream": True}).encode()
    with server.connect() as sock:
        sock.sendall(post(body))
        with sock.makefile("rb") as reply:
            while not reply.readline().startswith(b"data: "):
                pass
            sock.sendall(behind)
            rest = reply.read()
    assert b"HTTP/1.1" not in rest
    assert not rest.endswith(b"0\r\n\r\n")
    assert request_log(lambda line: line.path == "/v1/completions").status == 499


def test_a_fault_is_no_reply_to_a_request_that_still_waits_for_its_own(server: Running) -> None:
    body = json.dumps({"prompt": [[i] for i in range(3, 35)]}).encode()
    with server.connect() as sock:
        sock.sendall(post(body) + b"nonsense\r\n\r\n")
        assert sock.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (b"nonsense\r\n\r\n", "-"),
        (b"POST /v1/completions HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\nnonsense\r\n", None),
    ],
    ids=["head", "body"],
)
def test_the_log_says_what_was_wrong_below_http(
    server: Running, request_log: FindLine, sent: bytes, path: str | None
) -> None:
    with server.connect() as sock:
        sock.sendall(sent)
        with sock.makefile("rb") as reply:
            answer = reply.read()
    line = request_log(lambda line: line.status == 400)
    assert path in (None, line.path)
    assert f"x-request-id: {line.request_id}\r\n".encode() in answer
    assert line.error_message == "Invalid HTTP request received."


def test_silence_ends_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "receive_timeout_s", 0.05)
    with running(settings_for(preload=False)) as impatient:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
        assert_refused(exchange(impatient, head, b"{"), 408)
        assert_refused(exchange(impatient, b"POST /v1/comp"), 408)
        with impatient.connect() as sock:
            assert sock.recv(1) == b""  # nothing was asked, so nothing is answered


SMALL_BUFFER = 4096
SCORE = {"max_tokens": 0, "echo": True, "logprobs": 20}
IN_ONE_WRITE = {**SCORE, "prompt": [65] * 80}  # 50 KB
IN_SEVERAL = {**SCORE, "prompt": [65] * 500}


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server that waits 0.2 s for a client to read, and a system that takes little from it."""
    monkeypatch.setattr(Protocol, "send_timeout_s", 0.2)
    real = Protocol.connection_made

    def made(self: Protocol, transport: asyncio.Transport) -> None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        real(self, transport)

    monkeypatch.setattr(Protocol, "connection_made", made)
    with running(settings_for()) as started:
        yield started


@contextmanager
def small_window(server: Running) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        sock.settimeout(PATIENCE_S)
        sock.connect(server.address)
        yield sock


def is_reset(sock: socket.socket) -> bool:
    """Waits for the connection to end while nothing is read."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(PATIENCE_S * 1000))


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize(
    "body", [IN_ONE_WRITE, IN_SEVERAL, {**IN_ONE_WRITE, "stream": True}, {**IN_SEVERAL, "n": 20}]
)
def test_a_client_that_reads_nothing_is_left(
    unhurried: Running, body: dict[str, Any], headers: bytes
) -> None:
    with small_window(unhurried) as sock:
        sock.sendall(post(json.dumps(body).encode(), headers))
        assert is_reset(sock)
    served = unhurried.host.served
    assert served is not None
    assert httpx.get(f"{unhurried.url}/health", timeout=PATIENCE_S).status_code == 200
    assert served.engine.num_streams == 0


def test_a_client_that_never_reads_its_many_replies_is_left(unhurried: Running) -> None:
    with small_window(unhurried) as sock:
        with suppress(ConnectionError):
            sock.sendall(HEALTH * 2000)
        assert is_reset(sock)


def test_the_work_for_a_client_that_reads_nothing_ends(
    unhurried: Running, request_log: FindLine
) -> None:
    with small_window(unhurried) as sock:
        sock.sendall(post(json.dumps({**IN_SEVERAL, "max_tokens": 1500, "stream": True}).encode()))
        line = request_log(lambda line: line.path == "/v1/completions")
    assert line.status == 499
    assert line.reply_tokens is not None
    assert line.reply_tokens < 1500


class _Clock:
    """An event loop whose time a test decides."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self.due.append(call)
        return SimpleNamespace(cancel=lambda: self.due.remove(call))


def test_a_client_that_reads_slowly_keeps_its_connection() -> None:
    clock = _Clock()
    transport = MagicMock(asyncio.Transport)
    config = uvicorn.Config(lambda *_: None, log_config=None)  # type: ignore[arg-type]
    protocol = Protocol(config, ServerState(), {}, _loop=clock)
    protocol.connection_made(transport)
    clock.due.clear()  # nothing has been received, which is another matter
    for unsent in (9000, 8999, 100, 99):
        transport.get_write_buffer_size.return_value = unsent
        if not clock.due:
            protocol.pause_writing()
        else:
            clock.due.pop()()
    transport.abort.assert_not_called()
    protocol.resume_writing()
    assert not clock.due
    protocol.pause_writing()
    clock.due.pop()()
    transport.abort.assert_called_once()
