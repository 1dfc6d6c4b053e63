"""However much a reply tells, the event loop has others: work on it comes in bounded slices."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from samovar.config import Settings
from samovar.server import chat, completions, sse, whole
from samovar.server.logprobs import MAX_TOLD
from samovar.server.whole import BLOCK_BYTES
from samovar.text.tokenizer import Tokenizer

from .conftest import Api, settings_for

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
A = 64
EMOJI = [172, 253, 246, 222]  # the bytes of one character, each a token
CONTROL = 298  # has no text
NO_END = {"297": -100, "299": -100}


@pytest.fixture(scope="module")
def long_api(make_api: Callable[[Settings], Api]) -> Iterator[Api]:
    api = make_api(settings_for(ctx=2048))
    assert api.post(TEXT, {"prompt": "Hello", "max_tokens": 1}).status_code == 200  # it is loaded
    # An event loop that never waits for a socket takes the GIL back before the engine's thread has
    # woken up, unless that may ask for it sooner than a turn of the loop lasts.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(3e-5)
    yield api
    sys.setswitchinterval(interval_s)


class _Work:
    """Counts what is done in one go, from one turn of the others to the next."""

    def __init__(self) -> None:
        self.tokens = self.bytes = 0
        self.most_tokens = self.most_bytes = 0
        self.turns = 0

    def turn(self) -> None:
        self.turns += 1
        self.tokens = self.bytes = 0

    def add(self, *, tokens: int = 0, num_bytes: int = 0) -> None:
        self.tokens += tokens
        self.bytes += num_bytes
        self.most_tokens = max(self.most_tokens, self.tokens)
        self.most_bytes = max(self.most_bytes, self.bytes)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> _Work:
    counted = _Work()

    def watch_tokens(module: Any, name: str) -> None:
        real = getattr(module, name)

        def told(tokens: Any, tokenizer: Any) -> Any:
            counted.add(tokens=len(tokens))
            return real(tokens, tokenizer)

        monkeypatch.setattr(module, name, told)

    def watch_bytes(module: Any) -> None:
        real = module.encode_json

        def encoded(value: object) -> bytes:
            data: bytes = real(value)
            counted.add(num_bytes=len(data))
            return data

        monkeypatch.setattr(module, "encode_json", encoded)

    watch_tokens(completions, "text_logprobs")
    watch_tokens(chat, "chat_logprobs")
    watch_bytes(sse)
    watch_bytes(whole)
    return counted


def answer(api: Api, work: _Work, path: str, body: dict[str, Any]) -> httpx.Response:
    """The reply to a request, while others ask for the server's health without a pause."""

    async def main() -> httpx.Response:
        reply = asyncio.create_task(api.client.post(path, json=body))
        while not reply.done():
            assert (await api.client.get("/health")).status_code == 200
            work.turn()
            await asyncio.sleep(0)
        return await reply

    return api.run(main())


SCORE = {"max_tokens": 0, "echo": True, "logprobs": 20}
LARGE = {
    "one prompt": (TEXT, {**SCORE, "prompt": [A + i % 20 for i in range(2000)]}),
    "copies": (TEXT, {**SCORE, "prompt": [A] * 500, "n": 12}),
    "prompts": (TEXT, {**SCORE, "prompt": [[A] * 300] * 12}),
    "without any text": (TEXT, {**SCORE, "prompt": [CONTROL] * 2000}),
    "tokens for a character": (TEXT, {**SCORE, "prompt": EMOJI * 400}),
    "echo and reply": (TEXT, {**SCORE, "prompt": [A] * 300, "n": 12, "max_tokens": 2}),
    "many choices": (TEXT, {"max_tokens": 0, "prompt": [[A]] * 32, "n": 128}),
    "best of": (
        TEXT,
        {
            "prompt": [A],
            "max_tokens": 200,
            "logprobs": 20,
            "best_of": 6,
            "n": 4,
            "temperature": 1,
            "logit_bias": NO_END,
        },
    ),
    "held back": (
        CHAT,
        {
            "messages": HELLO,
            "max_tokens": 900,
            "logprobs": True,
            "top_logprobs": 20,
            "stop": "b" * 1000,
            "logit_bias": {"65": 100},
        },
    ),
}


BEST_STREAMED = ("best of", True)  # is refused


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        (name, stream)
        for name in LARGE
        for stream in (False, True)
        if (name, stream) != BEST_STREAMED
    ],
)
def test_health_answers_while_a_large_reply_is_made(
    long_api: Api, work: _Work, name: str, stream: bool
) -> None:
    path, body = LARGE[name]
    response = answer(long_api, work, path, {**body, "stream": stream})
    assert response.status_code == 200
    assert work.most_tokens <= 2 * MAX_TOLD
    assert work.most_bytes <= 4 * BLOCK_BYTES
    long_api.assert_alive()


@pytest.mark.parametrize("name", ["one prompt", "tokens for a character", "echo and reply"])
def test_a_streamed_echo_comes_in_pieces_with_their_tokens(long_api: Api, name: str) -> None:
    path, body = LARGE[name]
    events = long_api.post(path, {**body, "stream": True}).text.split("\n\n")
    chunks = [json.loads(e.removeprefix("data: ")) for e in events if e.startswith("data: {")]
    told: dict[int, str] = {}
    for choice in (chunk["choices"][0] for chunk in chunks):
        tokens = choice["logprobs"]["tokens"]
        assert len(tokens) <= MAX_TOLD
        for offset in choice["logprobs"]["text_offset"]:
            assert len(told.get(choice["index"], "")) <= offset + 1
        told[choice["index"]] = told.get(choice["index"], "") + choice["text"]
        if tokens:
            assert choice["logprobs"]["text_offset"][-1] < len(told[choice["index"]])
    (first, *others) = long_api.post(path, body).json()["choices"]
    assert told == {each["index"]: each["text"] for each in (first, *others)}


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [A] * 2000, "n": 25},
        {"prompt": [[A] * 1000] * 50},
        {"prompt": [A] * 1000, "n": 50, "max_tokens": 1},
    ],
)
def test_an_echo_of_too_many_log_probabilities_is_refused(
    long_api: Api, body: dict[str, Any]
) -> None:
    response = long_api.post(TEXT, {**SCORE, **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "logprobs"
    assert "1050000" in error["message"]
    assert str(2**20) in error["message"]
    assert long_api.post(TEXT, {**SCORE, **body, "stream": True}).status_code == 400
    fewer = {**SCORE, **body, "prompt": [A], "max_tokens": 0}
    assert long_api.post(TEXT, fewer).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (TEXT, {"prompt": "a", "max_tokens": 1, "user": [[1]] * 200_000}, 200),
        (TEXT, {"prompt": "a", "user": [[1]] * 200_000 + ["\0"]}, 400),
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 20_000}, 400),
    ],
)
def test_a_body_of_many_arrays_is_not_searched_for_garbage(
    long_api: Api, path: str, body: dict[str, Any], status: int
) -> None:
    """Each search would stop everybody, for the longer the more of the body there is."""
    in_parser: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if threading.current_thread().name.startswith("samovar-prompt"):
            in_parser.append(phase)

    gc.callbacks.append(note)
    try:
        assert long_api.post(path, body).status_code == status
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert len(in_parser) <= 20


def test_ids_that_cannot_fit_are_refused_before_their_text_is_made(
    long_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "decode", None)
    for prompt in ([A] * 2049, [[A], [A] * 2049]):
        error = long_api.post(TEXT, {"prompt": prompt}).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (2049, 2048)
