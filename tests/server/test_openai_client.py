"""The official client is the judge: sync and async, streamed and not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from .conftest import Running

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
        assert last.usage == whole.usage
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


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "x " * 5000}], stream=True
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=HELLO, n=2)
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
