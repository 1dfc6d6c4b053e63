"""A full queue, and whose cached prefixes a request finds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Message

from samovar.config import Settings
from samovar.engine.request import Delta

from .conftest import Api, FindLine, settings_for

TEXT = "/v1/completions"
SHORT = {"prompt": "Hello", "max_tokens": 1}
PROMPT = list(range(30, 110))


@contextmanager
def paused(api: Api) -> Iterator[None]:
    """While it lasts the engine begins no step."""
    assert api.host.served is not None
    engine = api.host.served.engine.engine
    step, gate = engine.step, threading.Event()

    def gated(**options: Any) -> list[tuple[str, Delta]] | None:
        gate.wait()
        return step(**options)

    engine.step = gated  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.step = step  # type: ignore[method-assign]
        gate.set()


def begun(api: Api, body: dict[str, Any]) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(api.client.post(TEXT, json=body))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("many", [{"prompt": [[3], [4]]}, {"n": 2}, {"best_of": 2}])
def test_a_full_queue(
    make_api: Callable[[Settings], Api], many: dict[str, Any], stream: bool
) -> None:
    api = make_api(settings_for(ctx=128, max_sequences=1, max_queue=2))
    assert api.post(TEXT, SHORT).status_code == 200
    assert api.host.served is not None
    front = api.host.served.engine

    async def main() -> tuple[list[httpx.Response], list[httpx.Response]]:
        with paused(api):
            two = begun(api, {**SHORT, **many})
            while front.num_streams == 0:
                await asyncio.sleep(0)
            refused = [await api.client.post(TEXT, json={**SHORT, "n": 2, "stream": False})]
            last = begun(api, {**SHORT, "stream": stream})
            while front.num_streams < len(many.get("prompt", [0])) + 1:
                await asyncio.sleep(0)
            refused.append(await api.client.post(TEXT, json={**SHORT, "stream": stream}))
        taken = [await two, await last]
        taken.append(await api.client.post(TEXT, json={**SHORT, **many, "stream": False}))
        return refused, taken

    refused, taken = api.run(main())
    assert [r.status_code for r in taken] == [200, 200, 200]
    for response in refused:
        assert response.status_code == 429
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert error["param"] is None
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["content-type"] == "application/json"
    assert front.num_streams == 0


def test_a_client_that_reads_nothing_holds_no_place(make_api: Callable[[Settings], Api]) -> None:
    api = make_api(settings_for(ctx=128, max_sequences=1, max_queue=1))
    assert api.post(TEXT, SHORT).status_code == 200

    async def main() -> list[int]:
        stuck = []
        statuses = []
        for first in range(3, 8):
            headers_read = asyncio.Event()

            async def send(message: Message, read: asyncio.Event = headers_read) -> None:
                if message.get("body", b"").startswith(b"data: "):
                    read.set()
                    await asyncio.Event().wait()

            body = {"prompt": [[first], [first + 1]], "stream": True, "max_tokens": 5}
            stuck.append(asyncio.create_task(api.call(TEXT, body, send)))
            await headers_read.wait()
            statuses.append((await until_taken(api)).status_code)
        for task in stuck:
            task.cancel()
            await task
        return statuses

    async def until_taken(api: Api) -> httpx.Response:
        while (reply := await api.client.post(TEXT, json=SHORT)).status_code == 429:
            pass  # the replies that nobody reads are still being computed
        return reply

    assert api.run(main()) == [200] * 5


def test_a_burst_is_refused_beyond_the_bound(make_api: Callable[[Settings], Api]) -> None:
    api = make_api(settings_for(ctx=128, max_sequences=2, max_queue=3))
    assert api.post(TEXT, SHORT).status_code == 200

    async def main() -> list[int]:
        body = {"prompt": [7], "max_tokens": 100}
        replies = await asyncio.gather(*(api.client.post(TEXT, json=body) for _ in range(20)))
        return [reply.status_code for reply in replies]

    statuses = api.run(main())
    assert 5 <= statuses.count(200) < 20
    assert set(statuses) == {200, 429}
    assert api.post(TEXT, SHORT).status_code == 200


def test_a_list_that_could_never_have_places_is_wrong(make_api: Callable[[Settings], Api]) -> None:
    api = make_api(settings_for(ctx=64, max_sequences=1, max_queue=2))
    response = api.post(TEXT, {"prompt": ["a"] * 4, "max_tokens": 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert api.post(TEXT, {"prompt": ["a"] * 3, "max_tokens": 1}).status_code == 200


def cached(api: Api, headers: dict[str, str]) -> int:
    body = {"prompt": PROMPT, "max_tokens": 1}
    usage: dict[str, Any] = api.post(TEXT, body, headers=headers).json()["usage"]
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({"api_key": ("first", "second")}, False),
        ({"api_key": ("first", "second"), "share_cache": True}, True),
    ],
)
def test_a_key_finds_only_prefixes_of_its_own(
    make_api: Callable[[Settings], Api], options: dict[str, Any], shared: bool
) -> None:
    api = make_api(settings_for(ctx=256, **options))
    first, second = {"authorization": "Bearer first"}, {"x-api-key": "second"}
    assert cached(api, first) == 0
    assert cached(api, first) == len(PROMPT) - 1
    assert cached(api, second) == (len(PROMPT) - 1 if shared else 0)
    assert cached(api, second) == len(PROMPT) - 1
    assert cached(api, {"x-api-key": "first"}) == len(PROMPT) - 1


@pytest.mark.parametrize("keys", [(), ("one",), ("one", "one")])
def test_without_several_keys_all_share(
    make_api: Callable[[Settings], Api], keys: tuple[str, ...]
) -> None:
    api = make_api(settings_for(ctx=256, api_key=keys))
    assert cached(api, {"authorization": "Bearer one"}) == 0
    assert cached(api, {"x-api-key": "one"}) == len(PROMPT) - 1


def test_the_log_line_tells_cached_tokens_and_the_wait(
    make_api: Callable[[Settings], Api], request_log: FindLine
) -> None:
    api = make_api(settings_for(ctx=256))
    body = {"prompt": [PROMPT, PROMPT[:40]], "max_tokens": 2, "n": 2, "best_of": 3}
    for cached_tokens in (None, len(PROMPT) - 1 + 39):
        api.post(TEXT, body)
        line = request_log(lambda line: line.path == TEXT)
        assert line.prompt_tokens == len(PROMPT) + 40
        assert line.queue_s is not None
        assert cached_tokens is None or line.cached_tokens == cached_tokens


def test_health_tells_of_queue_and_cache(make_api: Callable[[Settings], Api]) -> None:
    api = make_api(settings_for(ctx=256))
    cached(api, {})
    health = api.get("/health").json()
    assert (health["waiting"], health["preemptions"], health["blocks_used"]) == (0, 0, 0)
    assert 0 < health["blocks_cached"] <= health["blocks_total"]
