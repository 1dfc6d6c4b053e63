"""From parsed fields to a reply: engine requests, their deltas as chunks, the end of the client.

The streamed and the unstreamed reply come from one generator of chunks; the unstreamed one is
its fold. A client that goes away cancels the work, which closes the engine's streams, which
aborts the requests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.types import Receive

from samovar.engine.request import Delta, Request, Usage
from samovar.server.errors import (
    ClientGone,
    GenerationFailed,
    JsonResponse,
    error_body,
    public_error,
    shutting_down,
)
from samovar.server.exchange import Exchange
from samovar.server.host import ServedModel
from samovar.server.record import RequestRecord
from samovar.server.schema import GenerationFields
from samovar.server.sse import EventStream

Result = TypeVar("Result")
Chunk = dict[str, Any]
Pieces = AsyncGenerator[tuple[int, Delta], None]


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a reply have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    num_choices: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How one endpoint writes a reply.

    prefix: of its ids.  chunks(head, pieces, include_usage): the reply in pieces; the last one
    holds the usage if that is wanted.  fold(chunks): the whole reply.
    """

    prefix: str
    chunks: Callable[[Head, Pieces, bool], AsyncGenerator[Chunk, None]]
    fold: Callable[[AsyncGenerator[Chunk, None]], Coroutine[Any, Any, Chunk]]


async def complete(
    exchange: Exchange,
    fields: GenerationFields,
    model: ServedModel,
    prompts: Sequence[Sequence[int]],
    *,
    param: str,
    shape: Shape,
) -> None:
    """Generates one choice for each prompt and sends the reply.  `param` names the prompts' field.

    Raises RequestError and Unavailable, and then nothing has been sent.
    """
    record = exchange.record
    settings = exchange.settings
    sampling = settings.sampling(**fields.sampling())
    limit = settings.max_tokens if fields.token_limit is None else fields.token_limit
    head = Head(
        id=f"{shape.prefix}-{secrets.token_hex(14)}",
        created=int(time.time()),
        model=model.id,
        fingerprint=model.engine.engine.info.fingerprint,
        num_choices=len(prompts),
    )
    requests = [
        Request(
            id=f"{head.id}-{index}",
            prompt=tuple(prompt),
            sampling=sampling,
            max_tokens=limit,
            stop=settings.stop if fields.stop is None else fields.stop,
            end_ids=model.engine.engine.end_ids,
        )
        for index, prompt in enumerate(prompts)
    ]
    streams = [model.engine.stream(request, param=param) for request in requests]
    record.seed = sampling.seed
    headers = {"x-seed": str(sampling.seed), **ignored_header(record.ignored_fields)}
    pieces = merge(streams, record)
    exchange.host.note_request()
    if fields.stream:
        chunks = shape.chunks(head, pieces, fields.include_usage)
        await _send_stream(exchange, chunks, headers)
    else:
        whole = await attended(shape.fold(shape.chunks(head, pieces, True)), exchange)
        await exchange.reply(JsonResponse(whole, headers=headers))


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
            exchange.record.failed(error)
            await events.break_off(error_body(public_error(error)), exchange.scope)
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


async def merge(streams: Sequence[AsyncGenerator[Delta, None]], record: RequestRecord) -> Pieces:
    """The deltas of all streams as they come, each with its index; closing it closes them all.

    Raises GenerationFailed for a delta that carries an error.
    """
    source = _single(streams[0]) if len(streams) == 1 else _concurrent(streams)
    async with aclosing(source):
        async for index, delta in source:
            record.note(index, delta)
            if delta.error is not None:
                raise GenerationFailed(delta.error)
            yield index, delta


async def _single(stream: AsyncGenerator[Delta, None]) -> Pieces:
    async with aclosing(stream):
        async for delta in stream:
            yield 0, delta


async def _concurrent(streams: Sequence[AsyncGenerator[Delta, None]]) -> Pieces:
    arrived: asyncio.Queue[tuple[int, Delta | None]] = asyncio.Queue()

    async def read(index: int, stream: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(stream):
                async for delta in stream:
                    arrived.put_nowait((index, delta))
        finally:
            arrived.put_nowait((index, None))

    tasks = [asyncio.create_task(read(index, stream)) for index, stream in enumerate(streams)]
    try:
        for _ in range(len(tasks)):
            while (item := await arrived.get())[1] is not None:
                yield item[0], item[1]
            tasks[item[0]].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def usage_object(usages: Iterable[Usage]) -> dict[str, Any]:
    """The `usage` of a reply, summed over its choices."""
    usages = list(usages)
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names the fields which had no effect; names come from the client."""
    if not names:
        return {}
    return {"x-ignored-fields": ", ".join(quote(name, safe="[] ") for name in names)}
