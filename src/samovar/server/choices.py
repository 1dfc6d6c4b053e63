"""From the deltas of the engine to pieces of choices.

A request has n choices for each prompt, numbered through: choice i of prompt p is p * n + i. What
the endpoints write is made of pieces, and they alone know the shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from samovar.engine.request import Delta, TokenLogprob
from samovar.server.errors import GenerationFailed
from samovar.server.logprobs import MAX_TOLD, ReplyTokens, TextToken, Told, prompt_tokens
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


class Piece(NamedTuple):  # one is made for each token
    """What one choice gains; `tokens` are those whose text is complete with it, if wanted."""

    choice: int
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
    """The deltas of all prompts as pieces of choices; closing it closes `deltas`.

    Each piece is a bounded amount of work for whoever turns it into JSON, and the event loop has
    its turn before there is much more: also between many that come at once, as those of a prompt.
    """
    if plan.prompt_only:
        deltas = _copied(deltas, plan.num_choices)
    elif plan.ranks:
        deltas = _best(deltas, plan.num_choices, plan.num_candidates)
    readers: dict[int, ReplyTokens] = {}
    echoes: dict[int, Sequence[Told]] = {}  # made of the first delta of each prompt
    since_turn = 0  # pieces, and tokens told
    async with aclosing(deltas):
        async for number, delta in deltas:
            index = number * plan.num_choices + delta.choice
            prompt = prompts[number]
            gained: list[Piece] = []
            if index not in readers:
                offset = len(prompt.text) if plan.echo else 0
                readers[index] = ReplyTokens(tokenizer, end_ids, offset)
                if plan.echo:
                    if number not in echoes:
                        echoes[number] = await _echo(plan, prompt, delta.prompt_logprobs, tokenizer)
                    gained += [Piece(index, *told) for told in echoes[number]]
            told = [Told(delta.text, ())] if plan.num_top is None else readers[index].push(delta)
            gained += [Piece(index, *each) for each in told]
            if delta.finish_reason is not None:
                gained[-1] = gained[-1]._replace(finish_reason=delta.finish_reason)
            for piece in gained:
                yield piece
                since_turn += 1 + len(piece.tokens)
                if since_turn > MAX_TOLD:
                    since_turn = 0
                    await asyncio.sleep(0)


async def _echo(
    plan: Plan, prompt: EncodedPrompt, logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> Sequence[Told]:
    if plan.num_top is None:
        return [Told(prompt.text, ())]
    return await asyncio.to_thread(prompt_tokens, prompt.ids, logprobs, prompt.text, tokenizer)


async def _copied(deltas: Deltas, num_choices: int) -> Deltas:
    """Nothing was drawn, so all choices are the same."""
    async with aclosing(deltas):
        async for number, delta in deltas:
            for choice in range(num_choices):
                yield number, delta._replace(choice=choice)


@dataclass(slots=True)
class _Candidate:
    """A reply that may be dropped, and what its tokens' log probabilities sum up to."""

    deltas: list[Delta] = field(default_factory=list)
    total: float = 0.0
    num_tokens: int = 0

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.total += sum(each.logprob for each in delta.logprobs)
        self.num_tokens += len(delta.logprobs)

    @property
    def mean_logprob(self) -> float:
        return self.total / self.num_tokens


async def _best(deltas: Deltas, num_choices: int, num_candidates: int) -> Deltas:
    """The best candidates of each prompt, best first, once all of them have ended."""
    candidates: dict[int, list[_Candidate]] = {}
    num_ended: dict[int, int] = {}
    async with aclosing(deltas):
        async for number, delta in deltas:
            if number not in candidates:
                candidates[number] = [_Candidate() for _ in range(num_candidates)]
            replies = candidates[number]
            replies[delta.choice].add(delta)
            num_ended[number] = num_ended.get(number, 0) + (delta.finish_reason is not None)
            if num_ended[number] < num_candidates:
                continue
            scored = replies[0].deltas[0].prompt_logprobs
            # The earlier one at a tie.
            ranked = sorted(replies, key=lambda reply: reply.mean_logprob, reverse=True)
            for choice, reply in enumerate(ranked[:num_choices]):
                for each in reply.deltas:
                    yield number, each._replace(choice=choice, prompt_logprobs=scored)
            del candidates[number]


async def merge(streams: Sequence[AsyncGenerator[Delta, None]], record: RequestRecord) -> Deltas:
    """The deltas of all streams as they come, each with its index; closing it closes them all.

    Raises GenerationFailed for a delta that carries an error.
    """
    if len(streams) > 1:
        async with aclosing(_concurrent(streams)) as deltas:
            async for index, delta in deltas:
                _note(record, index, delta)
                yield index, delta
        return
    async with aclosing(streams[0]) as stream:
        async for delta in stream:
            _note(record, 0, delta)
            yield 0, delta


def _note(record: RequestRecord, index: int, delta: Delta) -> None:
    record.note(index, delta)
    if delta.error is not None:
        raise GenerationFailed(delta.error)


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
