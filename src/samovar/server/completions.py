"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from samovar.errors import RequestError
from samovar.server.choices import EncodedPrompt, Pieces, Plan
from samovar.server.exchange import Exchange
from samovar.server.generation import Chunk, Head, Shape, attended, complete
from samovar.server.logprobs import TextToken, text_logprobs
from samovar.server.schema import parse_text
from samovar.server.usage import Tally
from samovar.server.values import Prompt
from samovar.text.tokenizer import Tokenizer


async def completions(exchange: Exchange) -> None:
    """Continues each prompt; several run concurrently."""
    fields, exchange.record.ignored_fields = await exchange.parse(parse_text)
    model = await exchange.host.model(fields.model)
    for prompt in fields.prompt:
        if isinstance(prompt, str):
            model.refuse_hopeless([prompt], param="prompt")
    encoding = exchange.host.in_thread(encode_prompts, fields.prompt, model.engine.engine.tokenizer)
    prompts = await attended(encoding, exchange)
    plan = Plan(
        fields.n,
        fields.num_candidates,
        fields.num_top,
        echo=fields.echo,
        prompt_only=fields.prompt_only,
    )
    await complete(exchange, fields, model, prompts, param="prompt", shape=TEXT, plan=plan)


def encode_prompts(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[EncodedPrompt]:
    """Each prompt's token ids, a text's with the model's BOS; and its text, ids decoded.

    An empty prompt starts from BOS; RequestError if the model has none, or for an unknown id.
    """
    encoded = []
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
        text = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        encoded.append(EncodedPrompt(ids, text))
    return encoded


async def _chunks(head: Head, pieces: Pieces, tally: Tally | None) -> AsyncGenerator[Chunk, None]:
    base: Chunk = {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
    no_usage = {"usage": None} if tally is not None else {}

    def chunk(
        index: int,
        text: str,
        tokens: Sequence[TextToken] = (),
        finish_reason: str | None = None,
    ) -> Chunk:
        choice = {
            "index": index,
            "text": text,
            "logprobs": text_logprobs(tokens, head.tokenizer) if head.has_logprobs else None,
            "finish_reason": finish_reason,
        }
        return {**base, "choices": [choice], **no_usage}

    async with aclosing(pieces):
        async for piece in pieces:
            if piece.text or piece.tokens:
                yield chunk(piece.index, piece.text, piece.tokens)
            if piece.finish_reason is not None:
                yield chunk(piece.index, "", finish_reason=piece.finish_reason)
    if tally is not None:
        yield {**base, "choices": [], "usage": tally.as_object()}


async def _fold(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    texts: dict[int, list[str]] = {}
    logprobs: dict[int, dict[str, list[Any]]] = {}
    finish_reasons: dict[int, str] = {}
    last: Chunk = {}
    async with aclosing(chunks):
        async for last in chunks:
            for choice in last["choices"]:
                index = choice["index"]
                texts.setdefault(index, []).append(choice["text"])
                if (told := choice["logprobs"]) is not None:
                    joined = logprobs.setdefault(index, {name: [] for name in told})
                    for name, values in told.items():
                        joined[name] += values
                if choice["finish_reason"] is not None:
                    finish_reasons[index] = choice["finish_reason"]
    choices = [
        {
            "index": index,
            "text": "".join(texts[index]),
            "logprobs": logprobs.get(index),
            "finish_reason": finish_reasons[index],
        }
        for index in sorted(texts)
    ]
    return {**last, "choices": choices}


TEXT = Shape(prefix="cmpl", chunks=_chunks, fold=_fold)
