"""Several choices, log probabilities and echo: streamed and whole, alone and among others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samovar.config import Settings
from samovar.text.tokenizer import Tokenizer
from samovar.text.utf8 import decode_replacing

from .conftest import TINY_BASE, Api, settings_for

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LISTS = ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset")


def whole(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = api.post(path, body)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return choices


def streamed(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a stream, joined as a client would."""
    response = api.post(path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    found: dict[int, dict[str, Any]] = {}
    for event in response.text.split("\n\n"):
        if not event.startswith("data: {"):
            continue
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            text = choice["delta"].get("content", "") if path == CHAT else choice["text"]
            role = choice.get("delta", {}).get("role")
            is_first = choice["index"] not in found
            assert role == ("assistant" if path == CHAT and is_first else None)
            kept = found.setdefault(choice["index"], {"text": "", "logprobs": None})
            assert "finish_reason" not in kept
            kept["text"] += text
            if choice["logprobs"] is not None:
                kept["logprobs"] = kept["logprobs"] or {}
                for name, value in choice["logprobs"].items():
                    kept["logprobs"].setdefault(name, [] if name in LISTS else value)
                    if name in LISTS:
                        kept["logprobs"][name] += value
            if choice["finish_reason"] is not None:
                kept["finish_reason"] = choice["finish_reason"]
                assert not choice.get("delta")
    assert sorted(found) == list(range(len(found)))
    return [found[index] for index in sorted(found)]


def plain(choice: dict[str, Any]) -> dict[str, Any]:
    """What matters of a choice, in the same form for both endpoints."""
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return {
        "text": text,
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
    }


def tokenizer_of(api: Api) -> Tokenizer:
    served = api.host.served
    assert served is not None
    return served.engine.engine.tokenizer


_BODY = {
    "n": st.integers(1, 4),
    "seed": st.integers(0, 2**64 - 1),
    "temperature": st.sampled_from([0.0, 1.0, 3.0]),
    "top_p": st.just(1.0),
    "max_tokens": st.integers(1, 20),
    "stop": st.lists(st.sampled_from(["e", "t", " a", "\ufffd", "in", "\n"]), max_size=2),
    "logit_bias": st.dictionaries(
        st.integers(0, 296).map(str), st.floats(-100, 100, width=32), max_size=3
    ),
}
_CHAT = st.fixed_dictionaries(
    {"messages": st.just(HELLO), **_BODY, "logprobs": st.booleans()},
    optional={},
)
_TEXT = st.fixed_dictionaries(
    {
        **_BODY,
        "prompt": st.lists(
            st.lists(st.integers(0, 296), min_size=1, max_size=40), min_size=1, max_size=3
        ),
        "logprobs": st.none() | st.integers(0, 5),
        "echo": st.booleans(),
        "max_tokens": st.integers(0, 20),
    }
)


@hypothesis_settings(max_examples=60)
@given(body=_CHAT, top=st.integers(0, 20))
def test_chat_streams_are_the_whole_reply_in_pieces(
    api: Api, body: dict[str, Any], top: int
) -> None:
    if body["logprobs"]:
        body["top_logprobs"] = top
    choices = whole(api, CHAT, body)
    assert len(choices) == body["n"]
    assert streamed(api, CHAT, body) == [plain(choice) for choice in choices]
    for choice in choices:
        assert (choice["logprobs"] is not None) == body["logprobs"]
        if choice["logprobs"] is None:
            continue
        entries = choice["logprobs"]["content"]
        data = bytes(byte for entry in entries for byte in entry["bytes"])
        assert decode_replacing(data) == choice["message"]["content"]
        for entry in entries:
            assert entry["token"] == decode_replacing(bytes(entry["bytes"]))
            assert len(entry["top_logprobs"]) == top
            values = [each["logprob"] for each in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
    api.assert_alive()


@hypothesis_settings(max_examples=60)
@given(body=_TEXT)
def test_text_streams_are_the_whole_reply_in_pieces(api: Api, body: dict[str, Any]) -> None:
    choices = whole(api, TEXT, body)
    assert len(choices) == body["n"] * len(body["prompt"])
    assert streamed(api, TEXT, body) == [plain(choice) for choice in choices]
    for choice in choices:
        if (told := choice["logprobs"]) is None:
            assert body["logprobs"] is None
            continue
        assert len({len(values) for values in told.values()}) == 1
        assert told["text_offset"] == sorted(told["text_offset"])
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            if not token.startswith(("bytes:", "<|")):
                assert choice["text"].startswith(token, offset)
        for token, own, top in list(
            zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
        )[body["echo"] :]:
            assert own <= max(top.values()) <= 0
            assert len(top) in (body["logprobs"], body["logprobs"] + 1)
            assert token in top or choice["finish_reason"] == "stop"
    api.assert_alive()


@hypothesis_settings(max_examples=30)
@given(body=_TEXT, more=st.integers(1, 4))
def test_a_choice_does_not_depend_on_the_others(api: Api, body: dict[str, Any], more: int) -> None:
    n = body["n"]
    many = [plain(choice) for choice in whole(api, TEXT, {**body, "n": n + more})]
    for i, prompt in enumerate(body["prompt"]):
        alone = whole(api, TEXT, {**body, "prompt": prompt})
        start = i * (n + more)
        assert [plain(choice) for choice in alone] == many[start : start + n]
    api.assert_alive()


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_counts_a_prompt_once_and_every_reply(api: Api, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 7, "temperature": 1.0, "seed": 3, "logit_bias": {}}
    body |= {"messages": HELLO} if path == CHAT else {"prompt": [list(range(30, 40)), [5, 6]]}
    # End tokens cannot come.
    body["logit_bias"] = {"297": -100, "299": -100}
    one = api.post(path, body).json()["usage"]
    three = api.post(path, {**body, "n": 3}).json()["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]
    assert three["total_tokens"] == three["prompt_tokens"] + three["completion_tokens"]
    assert three["prompt_tokens_details"]["cached_tokens"] == three["prompt_tokens"] - (
        1 if path == CHAT else 2
    )


def test_best_of_shows_the_most_probable_replies(api: Api) -> None:
    body = {"prompt": [40, 41, 42], "max_tokens": 9, "temperature": 2.0, "seed": 8, "top_p": 1.0}
    body |= {"logprobs": 0, "logit_bias": {"297": -100, "299": -100}, "echo": True}
    candidates = whole(api, TEXT, {**body, "n": 6})

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"][3:]
        return float(sum(values) / len(values))

    best = sorted(candidates, key=mean, reverse=True)[:2]
    chosen = api.post(TEXT, {**body, "n": 2, "best_of": 6}).json()
    assert [plain(choice) for choice in chosen["choices"]] == [plain(choice) for choice in best]
    assert [choice["index"] for choice in chosen["choices"]] == [0, 1]
    assert chosen["usage"]["completion_tokens"] == 6 * 9
    del body["logprobs"]
    unseen = whole(api, TEXT, {**body, "n": 2, "best_of": 6})
    assert [choice["text"] for choice in unseen] == [choice["text"] for choice in best]
    assert unseen[0]["logprobs"] is None


def test_a_bias_makes_and_forbids_tokens(api: Api) -> None:
    body = {"prompt": "Hello", "max_tokens": 4, "logit_bias": {"65": 100}}
    assert whole(api, TEXT, body)[0]["text"] == "bbbb"
    first = whole(api, TEXT, {"prompt": "Hello", "max_tokens": 1, "logprobs": 1})[0]
    (token,) = [
        i
        for i in range(300)
        if [tokenizer_of(api).token_text(i).replace("Ġ", " ")] == first["logprobs"]["tokens"]
    ]
    other = whole(api, TEXT, {"prompt": "Hello", "max_tokens": 1, "logit_bias": {str(token): -100}})
    assert other[0]["text"] != first["text"]


def test_a_reply_scored_as_a_prompt_has_the_same_log_probabilities(api: Api) -> None:
    prompt = [40, 41, 42, 43]
    body = {"temperature": 1.5, "seed": 4, "max_tokens": 20, "logprobs": 5, "top_p": 1.0}
    (reply,) = whole(api, TEXT, {**body, "prompt": prompt, "logit_bias": {"297": -9, "299": -9}})
    tokenizer = tokenizer_of(api)
    ids = {}
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token)
        try:
            ids[data.decode() or tokenizer.token_text(token)] = token
        except UnicodeDecodeError:
            ids["bytes:" + "".join(f"\\x{byte:02x}" for byte in data)] = token
    read = [ids[token] for token in reply["logprobs"]["tokens"]]
    scored = whole(
        api,
        TEXT,
        {"prompt": prompt + read, "echo": True, "max_tokens": 0, "logprobs": 5, "n": 2},
    )
    assert plain(scored[0]) == plain(scored[1])
    told = scored[0]["logprobs"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert told[name][len(prompt) :] == reply["logprobs"][name]
    assert scored[0]["text"] == tokenizer.decode(prompt + read)
    assert scored[0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["Hello é 😀", "<|im_start|>user\nHi<|im_end|>", " two  words"])
@pytest.mark.parametrize("path", [None, TINY_BASE])
def test_an_echo_is_the_prompt_as_it_was_written(
    make_api: Callable[[Settings], Api], api: Api, prompt: str, path: Any
) -> None:
    asked = api if path is None else make_api(settings_for(path, ctx=96))
    body = {"prompt": prompt, "max_tokens": 5, "echo": True}
    (bare,) = whole(asked, TEXT, body)
    (told,) = whole(asked, TEXT, {**body, "logprobs": 2})
    (alone,) = whole(asked, TEXT, {**body, "echo": False, "logprobs": 2})
    assert bare["text"] == told["text"] == prompt + alone["text"]
    assert bare["logprobs"] is None
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert told["logprobs"][name][-len(alone["logprobs"][name]) :] == alone["logprobs"][name]
    shift = [offset + len(prompt) for offset in alone["logprobs"]["text_offset"]]
    assert told["logprobs"]["text_offset"][-len(shift) :] == shift
    (nothing,) = whole(asked, TEXT, {**body, "max_tokens": 0})
    assert nothing["text"] == prompt
    assert plain(nothing) == streamed(asked, TEXT, {**body, "max_tokens": 0})[0]


def test_no_tokens_and_no_echo_is_an_empty_reply(api: Api) -> None:
    reply = api.post(TEXT, {"prompt": ["a", "b"], "max_tokens": 0, "n": 2, "best_of": 3}).json()
    assert [choice["text"] for choice in reply["choices"]] == [""] * 4
    assert reply["usage"]["completion_tokens"] == 0


def test_logprobs_from_a_warm_cache_and_other_batches(
    make_api: Callable[[Settings], Api],
) -> None:
    body: dict[str, Any] = {"prompt": list(range(30, 110)), "max_tokens": 12, "logprobs": 5}
    body |= {"n": 3, "seed": 6, "temperature": 1.0, "top_p": 1.0}
    first = make_api(settings_for(ctx=256))
    cold = whole(first, TEXT, body)
    assert whole(first, TEXT, body) == cold
    assert whole(first, TEXT, {**body, "echo": True})[2]["text"].endswith(cold[2]["text"])
    other = make_api(settings_for(ctx=256, batch=7, speculate="off", kv="bf16"))
    assert whole(other, TEXT, body) == cold
    scored = {**body, "echo": True, "max_tokens": 0}
    assert whole(other, TEXT, scored) == whole(first, TEXT, scored)
