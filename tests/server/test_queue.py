"""A full queue, and whose cached prefixes a request finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.types import Message

from samovar.config import Settings

from .conftest import Api, FindLine, settings_for

TEXT = "/v1/completions"
SHORT = {"prompt": "Hello", "max_tokens": 1}
PROMPT = list(range(30, 110))


def reading(api: Api, prompts: list[list[int]]) -> tuple[asyncio.Task[None], asyncio.Event]:
    """A stream whose client has read the headers and reads no further."""
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body", b"").startswith(b"data: "):
            begun.set()
            await asyncio.Event().wait()

    call = api.call(TEXT, {"prompt": prompts, "stream": True, "max_tokens": 5}, send)
    return asyncio.create_task(call), begun


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(make_api: Callable[[Settings], Api], stream: bool) -> None:
    api = make_api(settings_for(ctx=128, max_sequences=1, max_queue=2))
    assert api.post(TEXT, SHORT).status_code == 200

    async def main() -> list[httpx.Response]:
        two, begun = reading(api, [[3], [4]])
        await begun.wait()
        several = {**SHORT, "prompt": ["a", "b"], "stream": stream}
        replies = [
            await api.client.post(TEXT, json=several),
            await api.client.post(TEXT, json={**SHORT, "stream": stream}),
        ]
        three, begun = reading(api, [[5]])
        await begun.wait()
        replies.append(await api.client.post(TEXT, json={**SHORT, "stream": stream}))
        for task in (two, three):
            task.cancel()
            await task
        replies.append(await api.client.post(TEXT, json=several))
        return replies

    list_full, last_place, full, again = api.run(main())
    assert [r.status_code for r in (list_full, last_place, full, again)] == [429, 200, 429, 200]
    for response in (list_full, full):
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert error["param"] is None
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["content-type"] == "application/json"
    served = api.host.served
    assert served is not None
    assert served.engine.num_streams == 0


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
