"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from samovar.errors import TemplateError
from samovar.server.choices import EncodedPrompt, Pieces, Plan
from samovar.server.exchange import Exchange
from samovar.server.generation import Head, Shape, attended, complete
from samovar.server.logprobs import TextToken, chat_logprobs
from samovar.server.schema import parse_chat
from samovar.server.usage import Tally
from samovar.server.whole import Chunk, collect

KEPT_ROLES = frozenset({"system", "developer", "user"})


async def chat_completions(exchange: Exchange) -> None:
    """Renders the messages with the model's template and continues them."""
    fields, exchange.record.ignored_fields = await exchange.parse(parse_chat)
    model = await exchange.host.model(fields.model)
    template = model.engine.engine.template
    if template is None:
        raise TemplateError(
            "This model has no chat template: use /v1/completions, or start the server with "
            "--chat-template."
        )
    # These the template leaves as they are, but for white space around them.
    kept = [m.content.strip() for m in fields.messages if m.content and m.role in KEPT_ROLES]
    model.refuse_hopeless(kept, param="messages")
    model.refuse_too_many(len(fields.messages), param="messages")
    encoding = exchange.host.in_thread(
        template.encode,
        [message.for_template() for message in fields.messages],
        system=exchange.settings.system,
        continue_final=fields.continue_final_message,
        kwargs=fields.chat_template_kwargs,
    )
    prompt = await attended(encoding, exchange)
    await complete(
        exchange,
        fields,
        model,
        [EncodedPrompt(prompt)],
        param="messages",
        shape=CHAT,
        plan=Plan(fields.n, fields.n, fields.num_top),
    )


async def _chunks(head: Head, pieces: Pieces, tally: Tally | None) -> AsyncGenerator[Chunk, None]:
    base: Chunk = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
    no_usage = {"usage": None} if tally is not None else {}

    def chunk(
        index: int,
        delta: dict[str, Any],
        tokens: Sequence[TextToken] = (),
        finish_reason: str | None = None,
    ) -> Chunk:
        has_logprobs = head.has_logprobs and finish_reason is None
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": chat_logprobs(tokens, head.tokenizer) if has_logprobs else None,
            "finish_reason": finish_reason,
        }
        return {**base, "choices": [choice], **no_usage}

    async with aclosing(pieces):
        for index in range(head.num_choices):
            yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        async for piece in pieces:
            if piece.text or piece.tokens:
                yield chunk(piece.choice, {"content": piece.text}, piece.tokens)
            if piece.finish_reason is not None:
                yield chunk(piece.choice, {}, finish_reason=piece.finish_reason)
    if tally is not None:
        yield {**base, "choices": [], "usage": tally.as_object()}


async def _fold(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    last, choices = await collect(chunks, lambda choice: choice["delta"].get("content", ""))
    shown: Iterator[Chunk] = (
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in choices.items()
    )
    return {**last, "object": "chat.completion", "choices": shown}


CHAT = Shape(prefix="chatcmpl", chunks=_chunks, fold=_fold)
