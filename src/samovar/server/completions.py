"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from samovar.engine.request import Usage
from samovar.errors import RequestError
from samovar.server.exchange import Exchange
from samovar.server.generation import (
    Chunk,
    Head,
    Pieces,
    Shape,
    attended,
    complete,
    usage_object,
)
from samovar.server.schema import Prompt, parse_text
from samovar.text.tokenizer import Tokenizer


async def completions(exchange: Exchange) -> None:
    """Continues each prompt; several run concurrently, and choice i is prompt i's."""
    fields, exchange.record.ignored_fields = await exchange.parse(parse_text)
    model = await exchange.host.model(fields.model)
    for prompt in fields.prompt:
        if isinstance(prompt, str):
            model.refuse_hopeless([prompt], param="prompt")
    encoding = exchange.host.in_thread(encode_prompts, fields.prompt, model.engine.engine.tokenizer)
    prompts = await attended(encoding, exchange)
    await complete(exchange, fields, model, prompts, param="prompt", shape=TEXT)


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[Sequence[int]]:
    """Token ids of each prompt: a text's with the model's BOS, ids as they are.

    An empty prompt starts from BOS; RequestError if the model has none, or for an unknown id.
    """
    encoded: list[Sequence[int]] = []
    for i, prompt in enumerate(prompts):
        param = f"prompt[{i}]" if len(prompts) > 1 else "prompt"
        ids = tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt
        if not ids:
            if tokenizer.bos_id is None:
                raise RequestError(
                    f"'{param}' is empty, and this model has no token to begin a text with.",
                    param=param,
                )
            ids = [tokenizer.bos_id]
        if not isinstance(prompt, str) and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
            raise RequestError(
                f"'{param}' holds a token id outside of 0 to {tokenizer.vocab_size - 1}.",
                param=param,
            )
        encoded.append(ids)
    return encoded


async def _chunks(head: Head, pieces: Pieces, include_usage: bool) -> AsyncGenerator[Chunk, None]:
    base: Chunk = {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
    no_usage = {"usage": None} if include_usage else {}

    def chunk(index: int, text: str, finish_reason: str | None = None) -> Chunk:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return {**base, "choices": [choice], **no_usage}

    usages: dict[int, Usage] = {}
    async with aclosing(pieces):
        async for index, delta in pieces:
            usages[index] = delta.usage
            if delta.text:
                yield chunk(index, delta.text)
            if delta.finish_reason is not None:
                yield chunk(index, "", delta.finish_reason)
    if include_usage:
        yield {**base, "choices": [], "usage": usage_object(usages.values())}


async def _fold(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    texts: dict[int, list[str]] = {}
    finish_reasons: dict[int, str] = {}
    last: Chunk = {}
    async with aclosing(chunks):
        async for last in chunks:
            for choice in last["choices"]:
                texts.setdefault(choice["index"], []).append(choice["text"])
                if choice["finish_reason"] is not None:
                    finish_reasons[choice["index"]] = choice["finish_reason"]
    choices = [
        {
            "index": index,
            "text": "".join(texts[index]),
            "logprobs": None,
            "finish_reason": finish_reasons[index],
        }
        for index in sorted(texts)
    ]
    return {**last, "choices": choices}


TEXT = Shape(prefix="cmpl", chunks=_chunks, fold=_fold)
