"""HTTP below the application, over a real socket: limits, silence, nonsense."""

from __future__ import annotations

import json
import socket
from typing import Any, BinaryIO

import pytest

from samovar.server.protocol import Protocol

from .conftest import FindLine, Running, running, settings_for

HOST = b"Host: localhost\r\n"


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


def test_silence_ends_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "receive_timeout_s", 0.05)
    with running(settings_for(preload=False)) as impatient:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
        assert_refused(exchange(impatient, head, b"{"), 408)
        assert_refused(exchange(impatient, b"POST /v1/comp"), 408)
        with impatient.connect() as sock:
            assert sock.recv(1) == b""  # nothing was asked, so nothing is answered
