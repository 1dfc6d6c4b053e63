"""Request bodies: what is read, what is lenient, what is refused and under which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.errors import MissingField, RequestError, UnsupportedField
from samovar.server.schema import ChatFields, TextFields, parse_chat, parse_text

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatFields:
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode())[0]


def text(**fields: Any) -> TextFields:
    return parse_text(json.dumps({"prompt": "Hello", **fields}).encode())[0]


def ignored(**fields: Any) -> tuple[str, ...]:
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode())[1]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (None, ("",)),
        ("", ("",)),
        ([], ((),)),
        ([[]], ((),)),
    ],
)
def test_all_forms_of_a_prompt_become_one(prompt: object, prompts: object) -> None:
    assert text(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": 64.0}, 64),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_completion_tokens": 10**30}, 2**31 - 1),
    ],
)
def test_the_limit_of_tokens(fields: dict[str, Any], limit: int | None) -> None:
    assert chat(**fields).token_limit == limit


@pytest.mark.parametrize(
    ("value", "stops"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("a", ("a",)),
        (["a", "b", "", "a"], ("a", "b")),
    ],
)
def test_stop_strings(value: object, stops: tuple[str, ...]) -> None:
    assert chat(stop=value).stop == stops
    assert chat().stop is None


@pytest.mark.parametrize(
    ("seed", "taken"), [(0, 0), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_a_seed_is_taken_modulo_two_to_the_64(seed: int, taken: int) -> None:
    assert chat(seed=seed).seed == taken


def test_both_names_of_the_repeat_penalty() -> None:
    assert chat(repeat_penalty=1.5).repeat_penalty == 1.5
    assert chat(repetition_penalty=1.5).repeat_penalty == 1.5
    assert chat(repeat_penalty=None, repetition_penalty=1.5).repeat_penalty == 1.5
    assert chat(repeat_penalty=1.5, repetition_penalty=1.5).repeat_penalty == 1.5
    assert ignored(repetition_penalty=1.5) == ()
    assert ignored(repeat_penalty=1.5, repetition_penalty=1.5) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"functions": []},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"logit_bias": {}},
        {"n": None},
        {"n": 1},
        {"n": 1.0},
        {"logprobs": False},
        {"top_logprobs": 0},
        {"top_logprobs": 0.0},
        {"response_format": {"type": "text"}},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream_options": None},
        {"parallel_tool_calls": False},
        {"modalities": ["text"]},
        {"reasoning_effort": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    ],
)
def test_harmless_values_pass_in_silence(fields: dict[str, Any]) -> None:
    assert ignored(**fields) == ()


def test_unknown_fields_are_named() -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "Hi",
            "refusal": None,
            "audio": None,
            "function_call": None,
            "tool_calls": None,
            "annotations": [],
            "mood": "good",
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a", "annotations": []},
                {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}, "font": 3},
            ],
        },
    ]
    assert ignored(messages=messages, colour="red", nothing=None) == (
        "colour",
        "messages[1].mood",
        "messages[2].content[1].cache_control",
        "messages[2].content[1].font",
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        (
            {"stream_options": {"continuous_usage": True}},
            "stream_options.continuous_usage",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "unsupported_value",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[1].tool_calls",
            "unsupported_parameter",
        ),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(UnsupportedField) as caught:
        chat(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in str(caught.value)


def test_a_suffix_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedField) as caught:
        text(suffix="x")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": "1"}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ],
)
def test_wrong_values_of_a_text_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        text(**fields)
    assert (caught.value.param, caught.value.code) == (param, None)
    assert param in str(caught.value)


def test_fields_of_choices() -> None:
    assert chat(logit_bias={"5": 1, "70": -100.0}).logit_bias == ((5, 1.0), (70, -100.0))
    assert (chat(n=3).n, chat(n=None).n, chat(n=128.0).n) == (3, 1, 128)
    assert (chat().num_top, chat(logprobs=True).num_top) == (None, 0)
    assert chat(logprobs=True, top_logprobs=20).num_top == 20
    assert (text().num_top, text(logprobs=False).num_top, text(logprobs=0).num_top) == (
        None,
        None,
        0,
    )
    assert (text(n=2).num_candidates, text(n=2, best_of=5).num_candidates) == (2, 5)
    assert text(best_of=2, n=2, stream=True).num_candidates == 2
    assert text(max_tokens=0).prompt_only
    assert not text(max_tokens=-1).prompt_only
    assert text(max_tokens=-1).token_limit == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stream": 1}, "stream"),
        ({"stream_options": 1}, "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"model": 5}, "model"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"n": 0}, "n"),
        ({"n": "1"}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"top_logprobs": 0.5, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 21.0, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-50}, "repetition_penalty"),
        ({"repeat_penalty": 9e-7}, "repeat_penalty"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.4}, "repetition_penalty"),
        ({"repeat_penalty": 1, "repetition_penalty": "1"}, "repetition_penalty"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [*HELLO, {"role": "robot", "content": ""}]}, "messages[1].role"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_wrong_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert (caught.value.param, caught.value.code) == (param, None)
    assert param in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], [2, True]], "prompt[1][1]"),
        ([True], "prompt[0]"),
        ([1.0], "prompt[0]"),
        (["a"] * 2049, "prompt"),
    ],
)
def test_wrong_prompts_name_their_place(prompt: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        text(prompt=prompt)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "messages"),
        (b'{"messages": null}', "messages"),
        (b'{"messages": [{"role": "user"}]}', "messages[0].content"),
        (b'{"messages": [{"content": "a"}]}', "messages[0].role"),
    ],
)
def test_missing_fields(body: bytes, param: str) -> None:
    with pytest.raises(MissingField) as caught:
        parse_chat(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"prompt": NaN}',
        b'{"prompt": -Infinity}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a"} x',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": ' + b"9" * 5000 + b"}",
        b'{"temperature": 1e999, "prompt": "a", "seed": 1e999}',
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_text(body)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_text(b'\xef\xbb\xbf{"prompt": "a"}')[0].prompt == ("a",)


def test_text_parts_are_joined_by_line_ends() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = chat(messages=[{"role": "user", "content": parts}]).messages[0]
    assert message.for_template() == {"role": "user", "content": "a\nb"}
