"""From parsed fields to a reply: engine requests, their deltas as chunks, the end of the client.

The streamed and the unstreamed reply come from one generator of chunks; the unstreamed one is
its fold. A client that goes away cancels the work, which closes the engine's streams, which
aborts the requests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.types import Receive

from samovar.engine.request import Request
from samovar.server.choices import EncodedPrompt, Pieces, Plan, merge, pieces
from samovar.server.errors import (
    ClientGone,
    error_body,
    shutting_down,
)
from samovar.server.exchange import Exchange
from samovar.server.host import ServedModel
from samovar.server.schema import GenerationFields
from samovar.server.sse import EventStream
from samovar.server.usage import Tally
from samovar.server.whole import Chunk, encode_whole, send_whole
from samovar.text.tokenizer import Tokenizer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a reply have in common.

    tokenizer: spells the tokens of log probabilities.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    num_choices: int
    has_logprobs: bool
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Shape:
    """How one endpoint writes a reply.

    prefix: of its ids.  chunks(head, pieces, tally): the reply in pieces; the last one holds the
    usage if there is a tally.  fold(chunks): the whole reply, to be encoded by `encode_whole`.
    """

    prefix: str
    chunks: Callable[[Head, Pieces, Tally | None], AsyncGenerator[Chunk, None]]
    fold: Callable[[AsyncGenerator[Chunk, None]], Coroutine[Any, Any, Chunk]]


async def complete(
    exchange: Exchange,
    fields: GenerationFields,
    model: ServedModel,
    prompts: Sequence[EncodedPrompt],
    *,
    param: str,
    shape: Shape,
    plan: Plan,
) -> None:
    """Generates the choices of each prompt and sends the reply.  `param` names the prompts' field.

    Raises RequestError, QueueFull and Unavailable, and then nothing has been sent.
    """
    record = exchange.record
    settings = exchange.settings
    engine = model.engine.engine
    sampling = settings.sampling(**fields.sampling())
    limit = settings.max_tokens if fields.token_limit is None else fields.token_limit
    head = Head(
        id=f"{shape.prefix}-{secrets.token_hex(14)}",
        created=int(time.time()),
        model=model.id,
        fingerprint=engine.info.fingerprint,
        num_choices=len(prompts) * plan.num_choices,
        has_logprobs=plan.num_top is not None,
        tokenizer=engine.tokenizer,
    )
    requests = [
        Request(
            id=f"{head.id}-{index}",
            prompt=tuple(prompt.ids),
            sampling=sampling,
            max_tokens=limit,
            stop=settings.stop if fields.stop is None else fields.stop,
            end_ids=engine.end_ids,
            n=1 if plan.prompt_only else plan.num_candidates,
            logprobs=0 if plan.ranks and plan.num_top is None else plan.num_top,
            prompt_logprobs=plan.num_top if plan.echo else None,
            prompt_only=plan.prompt_only,
            owner=exchange.owner,
        )
        for index, prompt in enumerate(prompts)
    ]
    with model.engine.streams(requests, param=param) as streams:
        record.seed = sampling.seed
        headers = {"x-seed": str(sampling.seed), **ignored_header(record.ignored_fields)}
        gained = pieces(merge(streams, record), plan, prompts, engine.tokenizer, engine.end_ids)
        exchange.host.note_request()
        if fields.stream:
            tally = record.tally if fields.include_usage else None
            await _send_stream(exchange, shape.chunks(head, gained, tally), headers)
        else:
            blocks = await attended(
                _encoded(shape, shape.chunks(head, gained, record.tally)), exchange
            )
            await attended(send_whole(exchange.send, blocks, headers), exchange)


async def _encoded(shape: Shape, chunks: AsyncGenerator[Chunk, None]) -> list[bytes]:
    return await encode_whole(await shape.fold(chunks))


async def _send_stream(
    exchange: Exchange, chunks: AsyncGenerator[Chunk, None], headers: Mapping[str, str]
) -> None:
    """Sends chunks as events; an error after the headers becomes the last one, and ends it all."""
    async with EventStream(exchange.send, headers) as events:
        try:
            await attended(events.send_all(chunks), exchange)
        except ClientGone:
            raise
        except Exception as error:
            told = exchange.record.failed(error)
            await events.break_off(error_body(told), exchange.scope)
        else:
            await events.end()


async def attended(work: Coroutine[Any, Any, Result], exchange: Exchange) -> Result:
    """The result of `work`, for as long as there is a client and the server goes on.

    Otherwise the work is cancelled and has ended when this raises ClientGone or Unavailable.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(exchange.receive))
    stopped = asyncio.create_task(exchange.host.stopped.wait())
    everything: tuple[asyncio.Task[Any], ...] = (task, gone, stopped)
    try:
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise shutting_down()
    finally:
        for each in everything:
            each.cancel()
        await asyncio.wait(everything)  # does not pass a second cancellation on to them
        if not task.cancelled():
            task.exception()  # whatever it was, this function has raised something already


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names the fields which had no effect; names come from the client."""
    if not names:
        return {}
    return {"x-ignored-fields": ", ".join(quote(name, safe="[] ") for name in names)}
