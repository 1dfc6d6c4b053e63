"""Streams byte by byte, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Message

from samovar.log import RequestLog
from samovar.server import sse

from .conftest import PATIENCE_S, Api, FindLine, Running

HOST = b"Host: localhost\r\n"


def events(text: str) -> list[str]:
    return text.removesuffix("\n\n").split("\n\n")


def test_the_order_of_events(api: Api) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    response = api.post(
        "/v1/chat/completions", {"messages": messages, "max_tokens": 4, "stream": True}
    )
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-seed"]
    ping, role, *_, end, done = events(response.text)
    assert ping == ": ping"
    assert json.loads(role.removeprefix("data: "))["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert json.loads(end.removeprefix("data: "))["choices"][0]["delta"] == {}
    assert done == "data: [DONE]"
    assert response.text.isascii()


def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_INTERVAL_S", 1e-4)

    async def main() -> list[bytes]:
        sent: list[bytes] = []
        third_ping = asyncio.Event()

        async def send(message: Message) -> None:
            sent.append(message.get("body", b"headers"))
            if sent.count(sse.PING) == 3:
                third_ping.set()

        async with sse.EventStream(send, {}) as stream:
            await third_ping.wait()
            await stream.data({"late": True})
            await stream.end()
        return sent

    headers, *pings, data, done = asyncio.run(main())
    assert headers == b"headers"
    assert set(pings) == {sse.PING}
    assert (data, done) == (b'data: {"late":true}\n\n', b"data: [DONE]\n\n")


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream breaks off behind its first chunk."""

    async def send_one(events: sse.EventStream, chunks: AsyncGenerator[dict[str, Any]]) -> None:
        async with aclosing(chunks):
            await events.data(await anext(chunks))
            raise RuntimeError("the secret reason")

    monkeypatch.setattr(sse.EventStream, "send_all", send_one)


@pytest.mark.usefixtures("fault")
def test_a_fault_after_the_headers_ends_the_connection(server: Running) -> None:
    with server.connect() as sock, sock.makefile("rb") as reply:
        sock.sendall(raw_request("/v1/completions", {"prompt": "Hello", "stream": True}))
        received = reply.read()
    assert b"transfer-encoding: chunked" in received
    assert not received.endswith(b"0\r\n\r\n")
    last = received[received.rindex(b"data: ") :].split(b"\n")[0]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "server_error",
        "internal_error",
        None,
    )
    assert b"secret" not in received
    assert b"[DONE]" not in received


@pytest.mark.usefixtures("fault")
def test_no_client_takes_a_broken_stream_for_a_whole_one(server: Running) -> None:
    body = {"prompt": "Hello", "stream": True}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    options = {"model": "x", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(**options)
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError, match="an error while processing"):
            next(stream)


def test_unknown_fields_are_named_in_a_header(api: Api) -> None:
    body = {"prompt": "a", "max_tokens": 1, "colour": 1, "wei\nrd, ü": 2}
    body |= {f"extra_{i}": i for i in range(30)}
    header = api.post("/v1/completions", body).headers["x-ignored-fields"]
    assert header.startswith("colour, wei%0Ard%2C %C3%BC, extra_0")
    assert header.endswith("and 12 more")


@pytest.mark.parametrize(
    ("sent", "kept"), [("abc-123", True), ("x" * 129, False), ("ü".encode("latin-1"), False)]
)
def test_request_ids(api: Api, sent: Any, kept: bool) -> None:
    given = api.get("/health", headers={"x-request-id": sent}).headers["x-request-id"]
    assert (given == sent) == kept
    assert kept or given.startswith("req_")


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


# Most of these go round in circles until the context is full: seconds of work.
LONG = {"prompt": [[i] for i in range(3, 35)], "temperature": 0}


@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_from_a_stream(
    server: Running, request_log: FindLine, n: int
) -> None:
    with server.connect() as sock:
        sock.sendall(raw_request("/v1/completions", {**LONG, "stream": True, "n": n}))
        with sock.makefile("rb") as reply:
            while not reply.readline().startswith(b"data: "):
                pass
    assert_gone(server, request_log(is_gone))


def test_a_client_that_goes_away_from_a_whole_reply(server: Running, request_log: FindLine) -> None:
    with server.connect() as sock:
        sock.sendall(raw_request("/v1/completions", LONG))
    assert_gone(server, request_log(is_gone))


def test_a_client_that_gives_up(server: Running, request_log: FindLine) -> None:
    with suppress(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.05)
    assert_gone(server, request_log(is_gone))


def is_gone(line: RequestLog) -> bool:
    return line.status == 499


def assert_gone(server: Running, line: RequestLog) -> None:
    assert (line.reply_tokens or 0) < 20 * 2000
    served = server.host.served
    assert served is not None
    assert served.engine.num_streams == 0
    # The next request finds an engine without any other work.
    reply = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}, timeout=PATIENCE_S
    )
    assert reply.status_code == 200
    stats = served.engine.engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def test_the_log_says_why_a_stream_broke_off(
    server: Running, request_log: FindLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr("samovar.server.chat.chat_logprobs", fails)
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "stream": True}
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S
        ) as reply,
    ):
        reply.read()
    line = request_log(lambda line: line.request_id == reply.headers["x-request-id"])
    assert (line.status, line.error_code) == (500, "internal_error")
    assert line.error_message


def test_the_log_line(server: Running, request_log: FindLine) -> None:
    body = {"prompt": "Hello", "max_tokens": 3, "seed": 9, "colour": 1, "temperature": 1.0}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S).json()
    line = request_log(lambda line: line.seed == 9)
    assert line.client.startswith("127.0.0.1:")
    assert (line.method, line.path, line.status) == ("POST", "/v1/completions", 200)
    assert line.prompt_tokens == reply["usage"]["prompt_tokens"]
    assert line.reply_tokens == reply["usage"]["completion_tokens"]
    assert line.cached_tokens == reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert line.queue_s is not None
    assert line.ttft_s is not None
    assert line.seed == 9
    assert line.finish_reason == reply["choices"][0]["finish_reason"]
    assert line.ignored_fields == ("colour",)
