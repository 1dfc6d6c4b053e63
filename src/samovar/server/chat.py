"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from samovar.engine.request import Usage
from samovar.errors import TemplateError
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
from samovar.server.schema import parse_chat

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
    await complete(exchange, fields, model, [prompt], param="messages", shape=CHAT)


async def _chunks(head: Head, pieces: Pieces, include_usage: bool) -> AsyncGenerator[Chunk, None]:
    base: Chunk = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
    no_usage = {"usage": None} if include_usage else {}

    def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Chunk:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        return {**base, "choices": [choice], **no_usage}

    usages: dict[int, Usage] = {}
    async with aclosing(pieces):
        for index in range(head.num_choices):
            yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        async for index, delta in pieces:
            usages[index] = delta.usage
            if delta.text:
                yield chunk(index, {"content": delta.text})
            if delta.finish_reason is not None:
                yield chunk(index, {}, delta.finish_reason)
    if include_usage:
        yield {**base, "choices": [], "usage": usage_object(usages.values())}


async def _fold(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    texts: dict[int, list[str]] = {}
    finish_reasons: dict[int, str] = {}
    last: Chunk = {}
    async with aclosing(chunks):
        async for last in chunks:
            for choice in last["choices"]:
                index = choice["index"]
                texts.setdefault(index, []).append(choice["delta"].get("content", ""))
                if choice["finish_reason"] is not None:
                    finish_reasons[index] = choice["finish_reason"]
    choices: list[Chunk] = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(texts[index]),
                "refusal": None,
                "annotations": [],
            },
            "logprobs": None,
            "finish_reason": finish_reasons[index],
        }
        for index in sorted(texts)
    ]
    return {**last, "object": "chat.completion", "choices": choices}


CHAT = Shape(prefix="chatcmpl", chunks=_chunks, fold=_fold)
