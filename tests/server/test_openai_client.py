"""The official client is the judge: sync and async, streamed and not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from samovar.engine.request import Request, SamplingParams

from .conftest import Running, running, settings_for

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="x", messages=HELLO, max_tokens=8, seed=7)
    choice = reply.choices[0]
    assert reply.id.startswith("chatcmpl-")
    assert reply.object == "chat.completion"
    assert reply.model == "llama"  # the server's own id, whatever was asked for
    assert reply.system_fingerprint
    assert (choice.index, choice.message.role, choice.message.refusal) == (0, "assistant", None)
    assert choice.message.content is not None
    assert choice.message.annotations == []
    assert choice.logprobs is None
    assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 8
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None


@pytest.mark.parametrize("include_usage", [False, True])
def test_streamed_chat_is_the_whole_reply_in_pieces(
    client: openai.OpenAI, include_usage: bool
) -> None:
    options = {"model": "x", "messages": HELLO, "max_tokens": 24, "temperature": 1.5, "seed": 11}
    whole = client.chat.completions.create(**options)
    options["stream_options"] = {"include_usage": include_usage}
    chunks = list(client.chat.completions.create(**options, stream=True))

    if include_usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert whole.usage is not None
        counts = {"prompt_tokens", "completion_tokens", "total_tokens"}
        assert last.usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)
    assert all(chunk.usage is None for chunk in chunks)
    assert all(("usage" in chunk.model_fields_set) == include_usage for chunk in chunks)
    assert {(c.id, c.created, c.model, c.system_fingerprint) for c in chunks} == {
        (chunks[0].id, chunks[0].created, "llama", whole.system_fingerprint)
    }
    first, *middle, end = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert all(c.delta.role is None and c.delta.content for c in middle)
    assert all(c.finish_reason is None for c in (first, *middle))
    assert end.delta.model_fields_set == set()
    assert end.finish_reason == whole.choices[0].finish_reason
    assert "".join(c.delta.content or "" for c in middle) == whole.choices[0].message.content


def test_a_list_of_prompts_gives_what_single_prompts_give(client: openai.OpenAI) -> None:
    options = {"model": "x", "max_tokens": 12, "temperature": 1.0, "seed": 3}
    prompts = ["Once", "Twice", "", "Thrice upon a time"]
    together = client.completions.create(prompt=prompts, **options)
    alone = [client.completions.create(prompt=prompt, **options) for prompt in prompts]

    assert together.object == "text_completion"
    assert together.id.startswith("cmpl-")
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in together.choices] == [r.choices[0].text for r in alone]
    assert together.usage is not None
    totals = [r.usage.total_tokens for r in alone if r.usage is not None]
    assert together.usage.total_tokens == sum(totals)


def test_streamed_texts_of_several_prompts(client: openai.OpenAI) -> None:
    options = {"model": "x", "prompt": [[1, 2, 3], [4, 5]], "max_tokens": 12, "seed": 5}
    whole = client.completions.create(**options)
    texts = {0: "", 1: ""}
    ends = {}
    for chunk in client.completions.create(**options, stream=True):
        assert chunk.object == "text_completion"
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason is not None:
            ends[choice.index] = choice.finish_reason
    assert texts == {c.index: c.text for c in whole.choices}
    assert ends == {c.index: c.finish_reason for c in whole.choices}


def test_choices_and_log_probabilities_are_complete(client: openai.OpenAI) -> None:
    options = {"model": "x", "messages": HELLO, "max_tokens": 9, "temperature": 1.5, "seed": 2}
    options |= {"n": 3, "logprobs": True, "top_logprobs": 4, "logit_bias": {"65": 3}}
    whole = client.chat.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.refusal is None
        assert choice.logprobs.content is not None
        data = bytes(byte for entry in choice.logprobs.content for byte in entry.bytes or [])
        assert data.decode(errors="replace") == choice.message.content
        assert all(len(entry.top_logprobs) == 4 for entry in choice.logprobs.content)
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        joined = stream.current_completion_snapshot
    assert {"content.delta", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    for ours, theirs in zip(joined.choices, whole.choices, strict=True):
        assert ours.message.content == theirs.message.content
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert ours.logprobs.model_dump() == theirs.logprobs.model_dump()


def test_evaluation_harnesses_score_a_prompt(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="x", prompt=[[40, 41, 42], [50, 51]], echo=True, max_tokens=0, logprobs=1, seed=1
    )
    for choice, num_tokens in zip(reply.choices, (3, 2), strict=True):
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert "".join(told.tokens) == choice.text
        assert told.token_logprobs is not None
        assert len(told.token_logprobs) == num_tokens
        assert told.token_logprobs[0] is None
        assert choice.finish_reason == "length"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 0)


def test_usage_tells_cached_and_predicted_tokens(client: openai.OpenAI) -> None:
    prompt = [17, 18, 19, 20] * 30
    options = {"model": "x", "prompt": prompt, "max_tokens": 60, "temperature": 0.0}
    first = client.completions.create(**options)
    again = client.completions.create(**options)
    assert again.choices == first.choices
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == len(prompt) - 1
    details = again.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) >= 0
    assert (details.rejected_prediction_tokens or 0) >= 0


def test_a_seed_is_told_and_reproduces_the_reply(client: openai.OpenAI) -> None:
    options = {"model": "x", "messages": HELLO, "max_tokens": 16, "temperature": 2.0}
    first = client.chat.completions.with_raw_response.create(**options)
    seed = int(first.headers["x-seed"])
    again = client.chat.completions.with_raw_response.create(**options, seed=seed)
    assert again.headers["x-seed"] == str(seed)
    assert first.parse().choices == again.parse().choices
    signed = client.chat.completions.with_raw_response.create(**options, seed=-1)
    assert signed.headers["x-seed"] == str(2**64 - 1)


def test_a_trailing_assistant_message_is_continued(client: openai.OpenAI) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    options = {"model": "x", "messages": messages, "max_tokens": 1}
    continued = client.chat.completions.create(**options)
    answered = client.chat.completions.create(
        **options, extra_body={"continue_final_message": False}
    )
    assert continued.usage is not None
    assert answered.usage is not None
    assert answered.usage.prompt_tokens > continued.usage.prompt_tokens


def test_a_stop_string_ends_the_reply_before_it(client: openai.OpenAI) -> None:
    options = {"model": "x", "prompt": "Hello", "max_tokens": 32, "temperature": 1.0, "seed": 1}
    text = client.completions.create(**options).choices[0].text
    stop = text[len(text) // 2 :][:2]
    cut = client.completions.create(**options, stop=stop).choices[0]
    assert stop != ""
    assert cut.finish_reason == "stop"
    assert cut.text == text[: text.index(stop)]


def test_a_full_queue_is_the_clients_rate_limit() -> None:
    settings = settings_for(ctx=64, max_sequences=1, max_queue=0)
    with (
        running(settings) as crowded,
        openai.OpenAI(base_url=f"{crowded.url}/v1", api_key="any", max_retries=0) as client,
    ):
        # Only one of the prompts has a place, so none may run; nor is it worth another try.
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="x", prompt=["a", "b"], max_tokens=1)
        assert crowded.host.served is not None
        other = Request(id="other", prompt=(1,), sampling=SamplingParams(), max_tokens=1)
        with crowded.host.served.engine.streams([other]):
            for stream in (False, True):
                with pytest.raises(openai.RateLimitError) as caught:
                    client.chat.completions.create(
                        model="x", messages=HELLO, max_tokens=1, stream=stream
                    )
                assert caught.value.code == "rate_limit_exceeded"
                assert caught.value.response.headers["retry-after"] == "1"
        assert client.completions.create(model="x", prompt="a", max_tokens=1).choices


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "x " * 5000}], stream=True
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=HELLO, n=129)
    assert caught.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model:q4")


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("llama", "model", "samovar")
    assert client.models.retrieve("llama") == model
    extras = model.model_extra
    assert extras is not None
    assert extras["max_model_len"] == extras["context_length"] == 2048
    assert extras["status"] == "loaded"


def test_many_at_once_give_the_same_reply(server: Running) -> None:
    async def main() -> list[str]:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:

            async def whole(seed: int) -> str:
                reply = await client.chat.completions.create(
                    model="x", messages=HELLO, max_tokens=20, temperature=1.0, seed=seed
                )
                return reply.choices[0].message.content or ""

            async def streamed(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model="x",
                    messages=HELLO,
                    max_tokens=20,
                    temperature=1.0,
                    seed=seed,
                    stream=True,
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            seeds = [1, 2, 3] * 3
            return await asyncio.gather(*map(whole, seeds), *map(streamed, seeds))

    texts = asyncio.run(main())
    assert texts == texts[:3] * 6


def test_choices_under_load_are_those_of_an_idle_server(server: Running) -> None:
    prompts = [[30 + (i * k) % 200 for i in range(20 * k)] for k in (1, 2, 3, 4)]
    bodies = [
        {"prompt": prompts[k], "n": k + 1, "logprobs": 3, "echo": k % 2 == 0, "seed": k}
        for k in range(4)
    ]

    async def main() -> None:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:

            async def ask(body: dict[str, Any]) -> list[openai.types.CompletionChoice]:
                reply = await client.completions.create(
                    model="x", max_tokens=24, temperature=1.0, top_p=1.0, **body
                )
                return reply.choices

            idle = [await ask(body) for body in bodies]
            others = [{"prompt": [i] * 60, "n": 4, "seed": i} for i in range(3, 9)]
            loaded = await asyncio.gather(*map(ask, bodies + others + bodies))
            assert loaded[:4] == idle
            assert loaded[-4:] == idle

    asyncio.run(main())
