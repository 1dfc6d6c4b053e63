"""HTTP below the application, over a real socket: limits, silence, nonsense."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from samovar.server.protocol import Protocol

from .conftest import Running, running, settings_for

HOST = b"Host: localhost\r\n"


def exchange(server: Running, *sent: bytes, half_close: bool = False) -> tuple[int, Any]:
    """Status and body of the reply to raw bytes."""
    with server.connect() as sock:
        for part in sent:
            sock.sendall(part)
        return read_reply(sock)


def read_reply(sock: socket.socket) -> tuple[int, Any]:
    with sock.makefile("rb") as reply:
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
    with server.connect() as sock:
        for framing in (b"Content-Length: 9000000", b"Transfer-Encoding: chunked"):
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n")
            if b"chunked" in framing:
                sock.sendall((b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n") * 140 + b"0\r\n\r\n")
            else:
                sock.sendall(b"x" * 9_000_000)
            assert_refused(read_reply(sock), 413)
        sock.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert read_reply(sock)[0] == 200


def test_an_upgrade_header_costs_no_body(server: Running) -> None:
    body = b'{"prompt": "Hello", "max_tokens": 1}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\n"
        + HOST
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(body)
    )
    status, reply = exchange(server, head, body)
    assert status == 200
    assert reply["usage"]["completion_tokens"] == 1


def test_silence_ends_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "receive_timeout_s", 0.05)
    with running(settings_for(preload=False)) as impatient:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
        assert_refused(exchange(impatient, head, b"{"), 408)
        assert_refused(exchange(impatient, b"POST /v1/comp"), 408)
        with impatient.connect() as sock:
            assert sock.recv(1) == b""  # nothing was asked, so nothing is answered
