"""The scheduler alone: every request ends and no block is lost, whatever comes and goes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.engine.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from samovar.engine.prefix import PrefixTree
from samovar.engine.request import Request, SamplingParams, TokenLogprob
from samovar.engine.scheduler import PROMPT_LOGIT_ROWS, Chunk, Scheduler, split
from samovar.engine.sequence import Sequence
from samovar.engine.speculate import MOST_DRAFTS, Lookup, Speculation
from samovar.text.tokenizer import Tokenizer

NUM_CTX = 8 * BLOCK_TOKENS
TOKEN = 65


@dataclass(frozen=True)
class Arrival:
    at_step: int
    num_prompt: int
    num_reply: int  # none: the prompt alone is scored
    head: int
    abort_after: int | None
    scored: bool
    n: int
    num_right: int  # of the drafts in a row


arrivals = st.lists(
    st.builds(
        Arrival,
        at_step=st.integers(0, 30),
        num_prompt=st.integers(1, NUM_CTX - 1),
        num_reply=st.integers(0, NUM_CTX),
        head=st.integers(0, 2),  # few different beginnings, so that prefixes are shared
        abort_after=st.none() | st.integers(0, 40),
        scored=st.booleans(),
        n=st.integers(1, 3),
        num_right=st.integers(0, 13),
    ),
    min_size=1,
    max_size=12,
)


class Scripted(Lookup):
    """Drafts of which so many in a row are right."""

    def __init__(self, num_right: int) -> None:
        super().__init__()
        self._num_right = num_right

    def propose(self, tokens: list[int], most: int) -> tuple[int, ...]:  # type: ignore[override]
        return ((TOKEN,) * self._num_right + (TOKEN + 1,) * most)[:most]


def running(scheduler: Scheduler) -> list[Sequence]:
    return list(scheduler)[: scheduler.num_running]


def run_step(scheduler: Scheduler, batch: int, max_sequences: int) -> list[Chunk]:
    """One step as the engine makes it, with its rules asserted."""
    chunks = scheduler.schedule(batch)
    by_seq = {id(chunk.seq): chunk for chunk in chunks}
    replies = [chunk for chunk in chunks if chunk.seq.pending == 1]
    assert len(chunks) <= max_sequences
    assert sum(chunk.count for chunk in chunks if chunk not in replies) <= batch
    assert sum(len(chunk.drafts) for chunk in chunks) <= MOST_DRAFTS
    assert sum(c.count for c in chunks if c.reads_logprobs) <= PROMPT_LOGIT_ROWS
    for chunk in chunks:
        assert chunk.is_reply == (chunk in replies)
        assert not chunk.drafts or (chunk.is_reply and not chunk.seq.request.prompt_only)
        assert chunk.start == chunk.seq.computed
        assert 1 <= chunk.count - len(chunk.drafts) <= chunk.seq.pending
        assert len(chunk.seq.block_ids) >= blocks_for(chunk.start + chunk.count)
    for seq in scheduler:
        assert not (seq.block_ids and seq.pending == 1 and id(seq) not in by_seq)
    prompts = [seq for seq in running(scheduler) if seq.pending > 1]
    for oldest in prompts[:1]:
        half = (batch + 1) // 2
        if oldest.reads_prompt_logprobs:
            half = min(half, PROMPT_LOGIT_ROWS // 2)
        assert by_seq[id(oldest)].count >= min(half, oldest.pending)
    for seq in running(scheduler):
        assert 0 <= (seq.cached or 0) < seq.num_prompt
        assert (seq.cached or 0) <= seq.computed or seq.num_reply
    scheduler.check()
    scheduler.commit(chunks)
    for chunk in chunks:
        if chunk.reads_logprobs:
            num_rows = min(chunk.count, chunk.seq.num_prompt - 1 - chunk.start)
            chunk.seq.prompt_logprobs += [TokenLogprob(TOKEN, -1.0)] * num_rows
    return chunks


def accept(scheduler: Scheduler, chunk: Chunk) -> bool:
    """Whether a sequence ended with what it gained after a chunk that reached its end."""
    seq = chunk.seq
    num_right = 0
    if not (ended := seq.request.prompt_only):
        for draft in (*chunk.drafts, -1):
            ended = seq.append(TOKEN).finish_reason == "length"
            if ended or draft != TOKEN:
                break
            num_right += 1
    scheduler.accept(seq, num_right)
    if ended:
        scheduler.remove(seq)
    return ended


@given(
    arrivals=arrivals,
    batch=st.integers(1, 300),
    max_sequences=st.integers(1, 6),
    spare_blocks=st.integers(0, 20),
)
def test_every_request_ends_and_no_block_is_lost(
    byte_tokenizer: Tokenizer,
    arrivals: list[Arrival],
    batch: int,
    max_sequences: int,
    spare_blocks: int,
) -> None:
    tree = PrefixTree(BlockPool(blocks_for(NUM_CTX) + spare_blocks))
    scheduler = Scheduler(
        tree, Speculation("ngram"), max_sequences=max_sequences, copy_block=lambda src, dst: None
    )
    wanted: dict[int, Arrival] = {}
    born: dict[int, int] = {}

    def new(arrival: Arrival, request: Request, choice: int, lead: Sequence | None) -> Sequence:
        seq = Sequence(request, byte_tokenizer, NUM_CTX, choice=choice, lead=lead)
        seq.lookup = Scripted(arrival.num_right)
        wanted[id(seq)], born[id(seq)] = arrival, step
        return seq

    step = 0
    to_come = sorted(arrivals, key=lambda a: a.at_step)
    while to_come or list(scheduler):
        while to_come and to_come[0].at_step <= step:
            arrival = to_come.pop(0)
            request = Request(
                id=str(len(wanted)),
                prompt=(arrival.head,) + (TOKEN,) * (arrival.num_prompt - 1),
                sampling=SamplingParams(),
                max_tokens=arrival.num_reply,
                n=arrival.n if arrival.num_reply else 1,
                prompt_only=not arrival.num_reply,
                prompt_logprobs=0 if arrival.scored or not arrival.num_reply else None,
            )
            scheduler.add(new(arrival, request, 0, None))
        for chunk in run_step(scheduler, batch, max_sequences):
            seq = chunk.seq
            if not chunk.reaches_end:
                continue
            if not seq.choice and not seq.num_reply:
                others = [
                    new(wanted[id(seq)], seq.request, choice, seq)
                    for choice in range(1, seq.request.n)
                ]
                for other in others:
                    other.start_as(seq)
                scheduler.add_first(others)
                for other in others:  # their first tokens are drawn along with its own
                    if other.append(TOKEN).finish_reason:
                        scheduler.remove(other)
            if accept(scheduler, chunk):
                room = NUM_CTX - wanted[id(seq)].num_prompt
                assert seq.num_reply == min(wanted[id(seq)].num_reply, room)
        for seq in list(scheduler):
            after = wanted[id(seq)].abort_after
            if after is not None and step - born[id(seq)] >= after:
                scheduler.remove(seq)
        step += 1
        # Each token of each reply is computed at most once for each that gave way before it.
        num_steps = NUM_CTX + 2 * NUM_CTX // min(batch, PROMPT_LOGIT_ROWS) + 1
        assert step < 31 + sum(a.n for a in arrivals) ** 2 * num_steps
    assert tree.num_available == blocks_for(NUM_CTX) + spare_blocks


@given(
    total=st.integers(1, 600),
    wants=st.lists(st.integers(1, 700), min_size=1, max_size=70),
)
def test_a_budget_is_used_up_and_the_oldest_gets_half(total: int, wants: list[int]) -> None:
    parts = list(split(total, dict(enumerate(wants))).values())
    assert sum(parts) == min(total, sum(wants))
    assert all(0 <= part <= want for part, want in zip(parts, wants, strict=True))
    assert parts[0] >= min(wants[0], (total + 1) // 2)
    fair = max(1, total // (2 * len(wants)))
    for part, want in list(zip(parts, wants, strict=True))[1 : total // 2 + 1]:
        assert part >= min(want, fair)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(
        PrefixTree(BlockPool(3000)),
        Speculation("off"),
        max_sequences=64,
        copy_block=lambda src, dst: None,
    )


def test_a_prompt_goes_on_while_others_are_scored(
    byte_tokenizer: Tokenizer, scheduler: Scheduler
) -> None:
    num_added = 0

    def add(num_prompt: int, *, scored: bool = False) -> Sequence:
        nonlocal num_added
        num_added += 1
        request = Request(
            id=str(num_added),
            prompt=(num_added % 256, num_added // 256, *[TOKEN] * (num_prompt - 2)),
            sampling=SamplingParams(),
            prompt_only=scored,
            prompt_logprobs=0 if scored else None,
        )
        seq = Sequence(request, byte_tokenizer, 10_000)
        scheduler.add(seq)
        return seq

    add(2)
    for _ in range(20):
        add(100, scored=True)
    prompt = add(1000)
    num_scored = steps = 0
    while prompt.computed < 1000:
        for chunk in run_step(scheduler, 16, 64):
            if chunk.reaches_end and accept(scheduler, chunk):
                num_scored += 1
                add(100, scored=True)  # they never stop coming
        steps += 1
    # Those before it, at half of the budget or better, then itself.
    assert steps <= (20 * 100 + 1000) // 8
    assert num_scored >= 20


def test_part_of_a_prompt_is_no_reply_however_short(
    byte_tokenizer: Tokenizer, scheduler: Scheduler
) -> None:
    request = Request(id="r", prompt=(TOKEN,) * 5, sampling=SamplingParams())
    scheduler.add(Sequence(request, byte_tokenizer, 100))
    kinds = []
    for _ in range(6):
        (chunk,) = run_step(scheduler, 1, 64)
        kinds.append((chunk.count, chunk.is_reply))
        if chunk.reaches_end:
            accept(scheduler, chunk)
    assert kinds == [(1, False)] * 4 + [(1, True)] * 2


def test_prompts_share_a_step_and_replies_are_never_left_out(
    byte_tokenizer: Tokenizer, scheduler: Scheduler
) -> None:
    def add(num_prompt: int) -> Sequence:
        request = Request(
            id=str(num_prompt), prompt=(num_prompt % 256,) * num_prompt, sampling=SamplingParams()
        )
        seq = Sequence(request, byte_tokenizer, 10_000)
        scheduler.add(seq)
        return seq

    reply = add(1)
    huge, small = add(5000), add(40)
    counts = {id(c.seq): c.count for c in scheduler.schedule(99)}
    assert counts[id(reply)] == 1
    assert counts[id(small)] >= 20
    assert counts[id(huge)] >= 50
    assert sum(counts.values()) == 100


def test_cached_tokens_are_those_that_others_computed(byte_tokenizer: Tokenizer) -> None:
    request = Request(id="r", prompt=(TOKEN,) * 200, sampling=SamplingParams())
    seq = Sequence(request, byte_tokenizer, 1000)

    def place(num_found: int) -> int | None:
        seq.note_release()
        seq.computed = num_found
        seq.note_place()
        return seq.cached

    assert place(32) == 32
    seq.note_adopted(64)
    assert (seq.computed, seq.cached) == (96, 96)
    seq.computed += 64  # computes some itself and gives way
    assert place(160) == 96
    assert place(64) == 64  # what it had found has left the cache meanwhile
    seq.note_adopted(32)
    assert seq.usage().cached_tokens == 96
    assert place(0) == 0
    seq.note_adopted(160)  # its own are among them, read from disk or computed by another
    assert seq.cached == 96
    assert place(64) == 64
    seq.note_adopted(128)  # the last 32 are beyond all that it computed
    assert seq.cached == 128
    seq.append(TOKEN)
    place(0)
    seq.note_adopted(192)
    assert seq.usage().cached_tokens == 128


def test_what_is_found_again_after_giving_way_is_counted_once(byte_tokenizer: Tokenizer) -> None:
    scheduler = Scheduler(
        PrefixTree(BlockPool(blocks_for(NUM_CTX))),
        Speculation("ngram"),
        max_sequences=8,
        copy_block=lambda src, dst: None,
    )

    def add(prompt: tuple[int, ...], num_right: int) -> Sequence:
        request = Request(id="r", prompt=prompt, sampling=SamplingParams())
        seq = Sequence(request, byte_tokenizer, NUM_CTX)
        seq.lookup = Scripted(num_right)
        scheduler.add(seq)
        return seq

    shared = tuple(range(2 * BLOCK_TOKENS))
    greedy = add((200,) * 31, MOST_DRAFTS)  # fills all blocks before the last prompt is read
    add((*shared, 100), 0)
    finder = add((*shared, *[101] * 36), 0)
    batch = 95
    while not finder.num_reply:
        for chunk in run_step(scheduler, batch, 8):
            if chunk.reaches_end:
                accept(scheduler, chunk)
        batch = 1 if greedy in scheduler else 95
    assert scheduler.num_preemptions == 2
    assert finder.cached == 2 * BLOCK_TOKENS


def test_the_youngest_gives_way_and_the_oldest_goes_on(byte_tokenizer: Tokenizer) -> None:
    tree = PrefixTree(BlockPool(4))
    scheduler = Scheduler(
        tree, Speculation("off"), max_sequences=8, copy_block=lambda src, dst: None
    )
    greedy = SamplingParams()
    old, young = (
        Sequence(
            Request(id=name, prompt=(ord(name[0]),) * (2 * BLOCK_TOKENS), sampling=greedy),
            byte_tokenizer,
            4 * BLOCK_TOKENS,
        )
        for name in ("old", "young")
    )
    scheduler.add(old)
    scheduler.add(young)
    for _ in range(2):
        chunks = scheduler.schedule(100)
        scheduler.commit(chunks)
        for chunk in chunks:
            if chunk.reaches_end:
                chunk.seq.append(TOKEN)
    assert [chunk.seq for chunk in scheduler.schedule(100)] == [old]
    assert young.block_ids == []
    assert young.pending == len(young.tokens)
