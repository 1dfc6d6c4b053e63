"""Every error has the API's shape, status and code, and no input is our fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from samovar.config import Settings

from .conftest import TINY_BASE, Api, FindLine, settings_for

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def assert_error(
    response: httpx.Response, status: int, code: str | None, param: str | None = None
) -> dict[str, Any]:
    body = response.json()
    error: dict[str, Any] = body["error"]
    assert response.status_code == status, body
    assert {"message", "type", "param", "code"} <= error.keys()
    assert (error["code"], error["param"]) == (code, param)
    assert body["detail"] == error["message"] != ""
    assert response.headers["x-request-id"]
    return error


def test_wrong_field(api: Api) -> None:
    response = api.post(CHAT, {"messages": [*HELLO, {"role": "user", "content": 1}]})
    error = assert_error(response, 400, None, "messages[1].content")
    assert error["type"] == "invalid_request_error"


def test_out_of_range(api: Api) -> None:
    for field in ({"temperature": 101}, {"top_p": -1}, {"min_p": 2}, {"frequency_penalty": 3}):
        response = api.post(CHAT, {"messages": HELLO, **field})
        assert_error(response, 400, None, *field)


def test_missing_field(api: Api) -> None:
    assert_error(api.post(CHAT, {}), 400, "missing_required_parameter", "messages")
    assert_error(api.post(TEXT, {}), 400, "missing_required_parameter", "prompt")


def test_bad_json(api: Api) -> None:
    assert_error(api.post(CHAT, content=b"{"), 400, None)


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_too_long(api: Api, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "x " * 500}], "stream": stream}
    error = assert_error(api.post(CHAT, body), 400, "context_length_exceeded", "messages")
    assert error["n_ctx"] == 96
    assert error["n_prompt_tokens"] > 500
    assert error["message"] == (
        f"This model's maximum context length is 96 tokens. However, your messages resulted in "
        f"{error['n_prompt_tokens']} tokens. Please reduce the length of the messages."
    )
    body = {"prompt": [1] * 96, "stream": stream}
    error = assert_error(api.post(TEXT, body), 400, "context_length_exceeded", "prompt")
    assert error["n_prompt_tokens"] == 96


@pytest.mark.parametrize("text", ["x" * 7_000_000, "é" * 3_000_000, "é" * 2_000_000])
def test_a_hopeless_prompt_is_refused_before_it_is_tokenized(
    api: Api, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr("samovar.server.completions.encode_prompts", never)
    monkeypatch.setattr("samovar.text.tokenizer.Tokenizer.encode", never)
    messages = [{"role": "user", "content": text}]
    for path, body, param in (
        (CHAT, {"messages": messages}, "messages"),
        (TEXT, {"prompt": ["a", text]}, "prompt"),
    ):
        response = api.post(path, content=json.dumps(body, ensure_ascii=False).encode())
        error = assert_error(response, 400, "context_length_exceeded", param)
        assert f"resulted in at least {error['n_prompt_tokens']} tokens" in error["message"]
        assert 96 <= error["n_prompt_tokens"] < len(text)


def test_white_space_that_the_template_may_drop_is_not_held_against_a_message(api: Api) -> None:
    messages = [{"role": "user", "content": "Hello" + " " * 100_000}]
    response = api.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert response.status_code == 200 or "at least" not in response.text


def test_a_bias_for_a_token_that_does_not_exist(api: Api) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"})):
        for stream in (False, True):
            response = api.post(path, {**body, "logit_bias": {"300": 1}, "stream": stream})
            assert_error(response, 400, None, "logit_bias")


def test_unknown_token_id(api: Api) -> None:
    assert_error(api.post(TEXT, {"prompt": [[1], [300]]}), 400, None, "prompt[1]")
    assert_error(api.post(TEXT, {"prompt": [-1]}), 400, None, "prompt")


def test_unknown_path_and_method(api: Api) -> None:
    assert_error(api.get("/v1/nothing"), 404, "unknown_url")
    assert_error(api.post("/v1/engines/x/completions"), 404, "unknown_url")
    assert "Unknown path: GET /v1/nothing" in api.get("/v1/nothing").text
    response = api.get(CHAT)
    assert_error(response, 405, None)
    assert response.headers["allow"] == "OPTIONS, POST"
    response = api.request("DELETE", "/v1/models")
    assert_error(response, 405, None)
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/embeddings", "Embeddings are not built"),
        ("/responses", "The Responses API is not built"),
        ("/responses/resp_1/cancel", "The Responses API is not built"),
        ("/messages/count_tokens", "Messages API is not built"),
        ("/rerank/", "Reranking is not built"),
        ("/tokenize", "Tokenizing is not built"),
        ("/metrics", "Metrics are not built"),
        ("/audio/transcriptions", "Audio is not built"),
    ],
)
def test_what_is_not_built_is_refused_by_name(api: Api, prefix: str, path: str, name: str) -> None:
    error = assert_error(api.post(prefix + path, {}), 404, "unknown_url")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("path", "field", "parts"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, ["json_object", '{"type": "text"}']),
        (CHAT, {"response_format": {"type": "x" * 10_000}}, ["xxx...", '{"type": "text"}']),
        (CHAT, {"tool_choice": "required"}, ['"required"', '"none" or "auto"']),
        (CHAT, {"modalities": ["text", "audio"]}, ['["text", "audio"]', '["text"]']),
        (CHAT, {"verbosity": "low"}, ['"low"', '"medium"']),
        (CHAT, {"tools": [{}]}, ["leave it out or send []"]),
        (CHAT, {"audio": {}}, ["leave it out."]),
        (TEXT, {"suffix": "x"}, ['leave it out or send ""']),
    ],
)
def test_a_refusal_says_what_would_do(
    api: Api, path: str, field: dict[str, Any], parts: list[str]
) -> None:
    body = {"messages": HELLO, "prompt": "a"}
    message = api.post(path, {**body, **field}).json()["error"]["message"]
    assert len(message) < 300
    for part in (f"'{next(iter(field))}'", *parts):
        assert part in message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": []}),
        (CHAT, {"messages": HELLO, "tools": [{}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 500}]}),
        (TEXT, {"prompt": "a", "a\nb": "\0"}),
        ("/v1/nothing", {}),
    ],
)
def test_the_log_says_why_a_request_was_refused(
    api: Api, request_log: FindLine, path: str, body: dict[str, Any]
) -> None:
    response = api.post(path, body)
    error = response.json()["error"]
    line = request_log(lambda line: line.path == path)
    assert line.status == response.status_code >= 400
    assert line.request_id == response.headers["x-request-id"]
    assert (line.error_code, line.error_param) == (error["code"], error["param"])
    assert line.error_message == error["message"]


def test_a_reply_that_succeeds_has_its_id_in_the_log(api: Api, request_log: FindLine) -> None:
    response = api.post(TEXT, {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    line = request_log(lambda line: line.request_id == "mine")
    assert (line.status, line.error_message) == (200, None)


def test_body_too_large(api: Api) -> None:
    assert_error(api.post(CHAT, content=b"x" * (8 * 2**20 + 1)), 413, None)


def test_foreign_pages(api: Api) -> None:
    assert_error(api.get("/v1/models", headers={"host": "evil.org"}), 403, None)
    assert_error(api.post(CHAT, headers={"origin": "https://evil.org"}), 403, None)


def test_chat_without_a_template(make_api: Callable[[Settings], Api]) -> None:
    base = make_api(settings_for(TINY_BASE, ctx=64))
    error = assert_error(base.post(CHAT, {"messages": HELLO}), 400, None, "messages")
    assert "template" in error["message"]
    assert base.post(TEXT, {"prompt": "Hello", "max_tokens": 1}).status_code == 200


def test_a_model_that_cannot_be_loaded(make_api: Callable[[Settings], Api], tmp_path: Any) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    late = make_api(settings_for(broken, preload=False))
    response = late.post(TEXT, {"prompt": "Hello"})
    error = assert_error(response, 500, "internal_error")
    assert error["type"] == "server_error"
    assert response.headers["x-should-retry"] == "false"
    assert "broken" not in response.text


# Above zero as a double, but not as the 32-bit float that the engine computes with, or hardly.
_TINY = st.sampled_from([5e-324, 1e-300, 1e-50, 1e-45, 1e-40, 1e-38, 1e-30, 1e-7, 1e-6])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 2**64, 10**400, -1])
    | st.floats()  # NaN and infinities are written as JSON does not allow
    | _TINY
    | st.text(st.characters(codec=None), max_size=8)
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])
            | _LEAVES,
            "content": st.text(max_size=6)
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _LEAVES}))
            | _JSON,
            "name": _JSON,
            "tool_call_id": _JSON,
            "tool_calls": _JSON,
        },
    )
    | _JSON,
    max_size=3,
)
_SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(low, high) | _TINY
        for name, (low, high) in {
            "temperature": (0, 100),
            "top_p": (0, 1),
            "min_p": (0, 1),
            "repeat_penalty": (0, 100),
            "frequency_penalty": (-2, 2),
            "presence_penalty": (-2, 2),
        }.items()
    },
)
_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": _MESSAGES | _JSON,
        "prompt": st.lists(st.integers(0, 299), max_size=4) | st.text(max_size=9) | _JSON,
        "max_tokens": st.integers(-2, 3) | _JSON,
        "max_completion_tokens": _JSON,
        "temperature": st.floats(0, 2) | _TINY | _JSON,
        "top_p": st.floats(0, 1) | _TINY | _JSON,
        "top_k": st.integers(0, 300) | _JSON,
        "min_p": st.floats(0, 1) | _TINY | _JSON,
        "repeat_penalty": st.floats(0, 2) | _TINY | _JSON,
        "repetition_penalty": _TINY | _JSON,
        "repeat_last_n": _JSON,
        "frequency_penalty": st.floats(-2, 2) | _TINY | _JSON,
        "presence_penalty": st.floats(-2, 2) | _TINY | _JSON,
        "seed": _JSON,
        "stop": st.lists(st.text(max_size=3), max_size=5) | _JSON,
        "stream": st.booleans() | _JSON,
        "stream_options": st.fixed_dictionaries({"include_usage": _LEAVES}) | _JSON,
        "model": _JSON,
        "n": st.integers(0, 5) | _JSON,
        "best_of": st.integers(0, 5) | _JSON,
        "logit_bias": st.dictionaries(
            st.integers(-1, 301).map(str) | st.text(max_size=2), st.floats(-101, 101) | _LEAVES
        )
        | _JSON,
        "logprobs": st.booleans() | st.integers(-1, 6) | _JSON,
        "top_logprobs": st.integers(-1, 21) | _JSON,
        "echo": st.booleans() | _JSON,
        "tools": _JSON,
        "response_format": _JSON,
        "chat_template_kwargs": st.dictionaries(st.text(max_size=8), _JSON, max_size=2) | _JSON,
        "continue_final_message": st.booleans() | _JSON,
        "anything": _JSON,
    },
)


def assert_answered(api: Api, response: httpx.Response) -> None:
    api.assert_alive()
    if response.status_code == 200:
        return
    assert response.status_code == 400, response.text
    assert {"message", "type", "param", "code"} <= response.json()["error"].keys()


@hypothesis_settings(max_examples=150)
@given(body=_BODIES | _JSON, path=st.sampled_from([CHAT, TEXT]))
def test_no_json_is_our_fault(api: Api, body: Any, path: str) -> None:
    assert_answered(api, api.post(path, content=json.dumps(body).encode()))


@hypothesis_settings(max_examples=60)
@given(sampling=_SAMPLING)
def test_no_sampling_is_our_fault(api: Api, sampling: dict[str, Any]) -> None:
    assert_answered(api, api.post(TEXT, {"prompt": [5, 5, 5], "max_tokens": 3, **sampling}))


@hypothesis_settings(max_examples=50)
@given(body=st.binary(max_size=40), path=st.sampled_from([CHAT, TEXT]))
def test_no_bytes_are_our_fault(api: Api, body: bytes, path: str) -> None:
    assert_answered(api, api.post(path, content=body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": ' + b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"messages": [{"role": "user", "content": "a"}], "messages": 1}',
        b'{"messages": [{"role": "user", "content": "\\u0000"}]}',
        b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"1" * 4000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": '
        b'{"messages": 1, "self": 2, "add_generation_prompt": 3, "raise_exception": 4}}',
    ],
)
def test_hostile_json_is_refused(api: Api, body: bytes) -> None:
    assert_error(
        response := api.post(CHAT, content=body), 400, None, response.json()["error"]["param"]
    )
