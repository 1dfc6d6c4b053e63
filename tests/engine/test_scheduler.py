"""The scheduler alone: every request ends and no block is lost, whatever comes and goes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from samovar.engine.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from samovar.engine.prefix import PrefixTree
from samovar.engine.request import Request, SamplingParams
from samovar.engine.scheduler import Scheduler
from samovar.engine.sequence import Sequence
from samovar.engine.speculate import Speculation
from samovar.text.tokenizer import Tokenizer

NUM_CTX = 8 * BLOCK_TOKENS
TOKEN = 65


@dataclass(frozen=True)
class Arrival:
    at_step: int
    num_prompt: int
    num_reply: int
    head: int
    abort_after: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        at_step=st.integers(0, 30),
        num_prompt=st.integers(1, NUM_CTX - 1),
        num_reply=st.integers(1, NUM_CTX),
        head=st.integers(0, 2),  # few different beginnings, so that prefixes are shared
        abort_after=st.none() | st.integers(0, 40),
    ),
    min_size=1,
    max_size=12,
)


def run_step(scheduler: Scheduler, batch: int, max_sequences: int) -> list[Sequence]:
    """One step as the engine makes it, with its rules asserted; returns who can sample."""
    chunks = scheduler.schedule(batch)
    decoding = [chunk for chunk in chunks if chunk.seq.pending == 1]
    assert len(chunks) <= max_sequences
    assert sum(c.count for c in chunks) - len(decoding) <= batch
    assert sum(c.count for c in chunks) <= batch + max_sequences
    for chunk in chunks:
        assert chunk.start == chunk.seq.computed
        assert 1 <= chunk.count <= chunk.seq.pending
        assert len(chunk.seq.block_ids) >= blocks_for(chunk.start + chunk.count)
    taking_part = {id(chunk.seq) for chunk in chunks}
    for seq in scheduler:
        assert not (seq.block_ids and seq.pending == 1 and id(seq) not in taking_part)
    scheduler.check()
    scheduler.commit(chunks)
    return [chunk.seq for chunk in chunks if chunk.reaches_end]


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
        tree, Speculation("off"), max_sequences=max_sequences, copy_block=lambda src, dst: None
    )
    wanted: dict[int, Arrival] = {}
    born: dict[int, int] = {}
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
            )
            seq = Sequence(request, byte_tokenizer, NUM_CTX)
            wanted[id(seq)], born[id(seq)] = arrival, step
            scheduler.add(seq)
        for seq in run_step(scheduler, batch, max_sequences):
            if seq.append(TOKEN).finish_reason == "length":
                room = NUM_CTX - wanted[id(seq)].num_prompt
                assert seq.num_reply == min(wanted[id(seq)].num_reply, room)
                scheduler.remove(seq)
        for seq in list(scheduler):
            after = wanted[id(seq)].abort_after
            if after is not None and step - born[id(seq)] >= after:
                scheduler.remove(seq)
        step += 1
        # Each token of each request is computed at most once for each that gave way before it.
        assert step < 31 + len(arrivals) ** 2 * (NUM_CTX + NUM_CTX // min(batch, NUM_CTX) + 1)
    assert tree.num_available == blocks_for(NUM_CTX) + spare_blocks


def test_prompts_share_a_step_and_replies_are_never_left_out(byte_tokenizer: Tokenizer) -> None:
    tree = PrefixTree(BlockPool(1000))
    scheduler = Scheduler(
        tree, Speculation("off"), max_sequences=8, copy_block=lambda src, dst: None
    )

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
