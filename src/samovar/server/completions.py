"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from samovar.errors import ContextOverflow, RequestError
from samovar.server.choices import EncodedPrompt, Pieces, Plan
from samovar.server.exchange import Exchange
from samovar.server.generation import Head, Shape, attended, complete
from samovar.server.limits import MAX_ECHO_LOGPROBS
from samovar.server.logprobs import TextToken, text_logprobs
from samovar.server.schema import TextFields, parse_text
from samovar.server.usage import Tally
from samovar.server.values import Prompt
from samovar.server.whole import Chunk, collect
from samovar.text.tokenizer import Tokenizer


async def completions(exchange: Exchange) -> None:
    """Continues each prompt; several run concurrently."""
    fields, exchange.record.ignored_fields = await exchange.parse(parse_text)
    model = await exchange.host.model(fields.model)
    num_ctx = model.engine.engine.info.num_ctx
    for prompt in fields.prompt:
        if isinstance(prompt, str):
            model.refuse_hopeless([prompt], param="prompt")
        elif len(prompt) > num_ctx:  # before its text is made, of which there may be megabytes
            raise ContextOverflow(len(prompt), num_ctx, param="prompt")
    encoding = exchange.host.in_thread(encode_prompts, fields.prompt, model.engine.engine.tokenizer)
    prompts = await attended(encoding, exchange)
    _refuse_too_much(fields, prompts)
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


def _refuse_too_much(fields: TextFields, prompts: Sequence[EncodedPrompt]) -> None:
    """Raises RequestError for an echo of more log probabilities than one reply may hold."""
    if not fields.echo or fields.num_top is None:
        return
    num_tokens = sum(len(prompt.ids) for prompt in prompts)
    num_logprobs = num_tokens * fields.n * (1 + fields.num_top)
    if num_logprobs > MAX_ECHO_LOGPROBS:
        raise RequestError(
            f"The echo would tell {num_logprobs} log probabilities ({num_tokens} tokens, each "
            f"{fields.n} times with its own and {fields.num_top} more); one reply holds up to "
            f"{MAX_ECHO_LOGPROBS}.",
            param="logprobs",
        )


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
                yield chunk(piece.choice, piece.text, piece.tokens)
            if piece.finish_reason is not None:
                yield chunk(piece.choice, "", finish_reason=piece.finish_reason)
    if tally is not None:
        yield {**base, "choices": [], "usage": tally.as_object()}


async def _fold(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    last, choices = await collect(chunks, lambda choice: str(choice["text"]))
    shown: Iterator[Chunk] = (
        {
            "index": index,
            "text": choice.text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in choices.items()
    )
    return {**last, "choices": shown}


TEXT = Shape(prefix="cmpl", chunks=_chunks, fold=_fold)
