"""From the deltas of the engine to pieces of choices.

A request has n choices for each prompt, numbered through: choice i of prompt p is p * n + i. What
the endpoints write is made of pieces, and they alone know the shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from samovar.engine.request import Delta, TokenLogprob
from samovar.server.errors import GenerationFailed
from samovar.server.logprobs import ReplyTokens, TextToken, prompt_tokens
from samovar.server.record import RequestRecord
from samovar.text.tokenizer import Tokenizer

Deltas = AsyncGenerator[tuple[int, Delta], None]


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it, and the text that stands for it where it is shown."""

    ids: Sequence[int]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What choices are made of.

    num_choices, num_candidates: replies shown and drawn for each prompt.
    echo: each choice begins with its prompt.  prompt_only: and there is nothing behind it.
    num_top: alternatives told with each token; None tells no log probabilities.
    """

    num_choices: int
    num_candidates: int
    num_top: int | None
    echo: bool = False
    prompt_only: bool = False

    @property
    def ranks(self) -> bool:
        """Whether some candidates are dropped."""
        return self.num_candidates > self.num_choices and not self.prompt_only


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gains; `tokens` are those whose text is complete with it, if wanted."""

    index: int
    text: str
    tokens: Sequence[TextToken]
    finish_reason: str | None = None


Pieces = AsyncGenerator[Piece, None]


async def pieces(
    deltas: Deltas,
    plan: Plan,
    prompts: Sequence[EncodedPrompt],
    tokenizer: Tokenizer,
    end_ids: frozenset[int],
) -> Pieces:
    """The deltas of all prompts as pieces of choices; closing it closes `deltas`."""
    if plan.prompt_only:
        deltas = _copied(deltas, plan.num_choices)
    elif plan.ranks:
        deltas = _best(deltas, plan.num_choices, plan.num_candidates)
    readers: dict[int, ReplyTokens] = {}
    echoes: dict[int, Sequence[TextToken]] = {}  # made of the first delta of each prompt
    async with aclosing(deltas):
        async for number, delta in deltas:
            index = number * plan.num_choices + delta.choice
            prompt = prompts[number]
            if index not in readers:
                offset = len(prompt.text) if plan.echo else 0
                readers[index] = ReplyTokens(tokenizer, end_ids, offset)
                if plan.echo:
                    if number not in echoes:
                        echoes[number] = _echo(plan, prompt, delta.prompt_logprobs, tokenizer)
                    yield Piece(index, prompt.text, echoes[number])
            tokens = () if plan.num_top is None else readers[index].push(delta)
            yield Piece(index, delta.text, tokens, delta.finish_reason)


def _echo(
    plan: Plan, prompt: EncodedPrompt, logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> Sequence[TextToken]:
    if plan.num_top is None:
        return ()
    return prompt_tokens(prompt.ids, logprobs, prompt.text, tokenizer)


async def _copied(deltas: Deltas, num_choices: int) -> Deltas:
    """Nothing was drawn, so all choices are the same."""
    async with aclosing(deltas):
        async for number, delta in deltas:
            for choice in range(num_choices):
                yield number, replace(delta, choice=choice)


async def _best(deltas: Deltas, num_choices: int, num_candidates: int) -> Deltas:
    """The best candidates of each prompt, best first, once all of them have ended."""
    candidates: dict[int, list[list[Delta]]] = {}
    num_ended: dict[int, int] = {}
    async with aclosing(deltas):
        async for number, delta in deltas:
            replies = candidates.setdefault(number, [[] for _ in range(num_candidates)])
            replies[delta.choice].append(delta)
            num_ended[number] = num_ended.get(number, 0) + (delta.finish_reason is not None)
            if num_ended[number] < num_candidates:
                continue
            scored = replies[0][0].prompt_logprobs
            ranked = sorted(replies, key=_mean_logprob, reverse=True)  # the earlier one at a tie
            for choice, reply in enumerate(ranked[:num_choices]):
                for each in reply:
                    yield number, replace(each, choice=choice, prompt_logprobs=scored)
            del candidates[number]


def _mean_logprob(reply: list[Delta]) -> float:
    logprobs = [each.logprob for delta in reply for each in delta.logprobs]
    return sum(logprobs) / len(logprobs)


async def merge(streams: Sequence[AsyncGenerator[Delta, None]], record: RequestRecord) -> Deltas:
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


async def _single(stream: AsyncGenerator[Delta, None]) -> Deltas:
    async with aclosing(stream):
        async for delta in stream:
            yield 0, delta


async def _concurrent(streams: Sequence[AsyncGenerator[Delta, None]]) -> Deltas:
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
