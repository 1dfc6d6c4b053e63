"""Who computes how many tokens in the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from samovar.engine.blocks import BlockPool, blocks_for
from samovar.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + count) of a sequence, computed in one step."""

    seq: Sequence
    start: int
    count: int

    @property
    def reaches_end(self) -> bool:
        """Whether the next token can be sampled after this chunk."""
        return self.start + self.count == len(self.seq.tokens)


class Scheduler:
    """Continuous batching over one pool of blocks.  Engine thread only.

    Every running sequence with one pending token takes part in every step; `batch` tokens less
    those rows, but at least one, are shared by the prompts that are still being read: each gets a
    fair part, what is left goes to the oldest.  When a reply needs a block and none is free, the
    youngest running sequence gives its blocks back and waits; its tokens stay, and since a result
    does not depend on how a prompt is cut, its reply does not change.  The oldest is never the one
    to wait, and the pool holds at least one full context: so every request ends.
    """

    def __init__(self, pool: BlockPool, *, batch: int, max_sequences: int) -> None:
        self.pool = pool
        self._batch = batch
        self._max_sequences = max_sequences
        self._running: list[Sequence] = []  # oldest first
        self._waiting: deque[Sequence] = deque()  # oldest first
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, seq: Sequence) -> None:
        self._waiting.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Takes a sequence out for good, wherever it is, and its blocks back."""
        if seq in self._running:
            self._running.remove(seq)
            self._release(seq)
        else:
            self._waiting.remove(seq)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, oldest sequence first; empty when there is nothing to do."""
        self._grow_replies()
        self._admit()
        return self._share()

    def commit(self, chunks: list[Chunk]) -> None:
        """Notes that the chunks were computed."""
        for chunk in chunks:
            chunk.seq.computed = chunk.start + chunk.count

    def _grow_replies(self) -> None:
        # Prompts own all their blocks since they were admitted; only replies grow.
        for seq in list(self._running):
            if seq not in self._running:
                continue  # gave way to an older one in this loop
            need = blocks_for(len(seq.tokens)) - len(seq.blocks)
            while need > self.pool.num_free:
                youngest = self._running[-1]
                self._give_way(youngest)
                if youngest is seq:
                    break
            else:
                seq.blocks += self.pool.take(need)

    def _give_way(self, seq: Sequence) -> None:
        self.num_preemptions += 1
        self._running.remove(seq)
        self._release(seq)
        self._waiting.appendleft(seq)  # older than all that wait, for it ran

    def _release(self, seq: Sequence) -> None:
        self.pool.give_back(seq.blocks)
        seq.blocks = []
        seq.computed = 0

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_sequences:
            need = blocks_for(len(self._waiting[0].tokens))
            if need > self.pool.num_free:
                return  # in order: a small request never overtakes a large one for ever
            seq = self._waiting.popleft()
            seq.blocks = self.pool.take(need)
            seq.start()
            self._running.append(seq)

    def _share(self) -> list[Chunk]:
        prompts = [seq for seq in self._running if seq.pending > 1]
        budget = max(1, self._batch - (len(self._running) - len(prompts)))
        counts = {id(seq): 1 for seq in self._running if seq.pending == 1}
        fair = budget // (2 * len(prompts)) if prompts else 0
        for seq in prompts:
            counts[id(seq)] = min(seq.pending, fair)
        budget -= sum(counts[id(seq)] for seq in prompts)
        for seq in prompts:
            extra = min(seq.pending - counts[id(seq)], budget)
            counts[id(seq)] += extra
            budget -= extra
        return [
            Chunk(seq, seq.computed, counts[id(seq)]) for seq in self._running if counts[id(seq)]
        ]
