"""Who computes how many tokens in the next step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from samovar.engine.blocks import BLOCK_TOKENS, blocks_for
from samovar.engine.prefix import Node, PrefixTree
from samovar.engine.sequence import Sequence
from samovar.engine.speculate import MOST_DRAFTS, Speculation

PROMPT_LOGIT_ROWS = 32  # logits of a prompt that are read in one step


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, start + count) of a sequence, computed in one step.

    drafts: guesses at the tokens after the sequence's last one, computed along with it.
    reads_logprobs: whether the logits of all its positions are wanted.
    is_reply: whether it is the one pending token of its sequence, and guesses at most; a part of a
        prompt may be one token as well.
    """

    seq: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()
    reads_logprobs: bool = False
    is_reply: bool = False

    @property
    def reaches_end(self) -> bool:
        """Whether the next token can be sampled after this chunk."""
        return self.start + self.count >= len(self.seq.tokens)

    @property
    def num_logit_rows(self) -> int:
        if self.reads_logprobs:
            return self.count
        return 1 + len(self.drafts) if self.reaches_end else 0


def split(total: int, wants: Mapping[int, int]) -> dict[int, int]:
    """What each of `wants`, oldest first, gets of `total`, which is at least one.

    Half of it, rounded up, is kept for the oldest.  The others get equal parts of the rest, at
    least one each as far as it goes; what nobody has taken goes to the oldest first.
    """
    fair = max(1, total // (2 * max(1, len(wants))))
    parts: dict[int, int] = {}
    for key, want in wants.items():
        parts[key] = min(want, fair if parts else total - total // 2, total)
        total -= parts[key]
    for key, want in wants.items():
        extra = min(want - parts[key], total)
        parts[key] += extra
        total -= extra
    return parts


class Scheduler:
    """Continuous batching over one tree of cached prefixes.  Engine thread only.

    Every running sequence with one pending token takes part in every step.  A budget of prompt
    tokens is split among the prompts that are still being read, and so are rows of logits among
    those whose logits are wanted: the oldest gets half or all it needs, the others equal parts.  Of
    several prompts that go on with the same block of tokens only the oldest computes it; the others
    find it in the tree afterwards.  A step with fewer tokens than prompts leaves the youngest out;
    the oldest is never left out, and since each is the oldest at some time, all are read.  Blocks
    that are on disk are read by running sequences, so room for them is had before; a step spends
    little more than `max_read_s` on that, and who has more to read computes nothing yet.

    When a reply needs a block and none can be had, the youngest running sequence gives its blocks
    back and waits; its tokens stay, and since a result does not depend on how a prompt is cut, its
    reply does not change.  The oldest is never the one to wait, and the pool holds at least
    one full context: so every request ends.
    """

    def __init__(
        self,
        tree: PrefixTree,
        speculation: Speculation,
        *,
        max_sequences: int,
        copy_block: Callable[[int, int], None],
        max_read_s: float = 0.02,
    ) -> None:
        self.tree = tree
        self.speculation = speculation
        self._max_sequences = max_sequences
        self._copy_block = copy_block
        self._max_read_s = max_read_s
        self.read_s = 0.0  # what the last step spent on blocks from disk
        self._before_read: Callable[[], None]  # of the present step
        self._running: list[Sequence] = []  # oldest first
        self._waiting: deque[Sequence] = deque()  # oldest first
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_decoding(self) -> int:
        """Running sequences that wait for one more token of their reply."""
        return sum(seq.pending == 1 for seq in self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, seq: Sequence) -> None:
        self._waiting.append(seq)

    def add_first(self, seqs: list[Sequence]) -> None:
        """Puts further choices of a running request before all that wait."""
        self._waiting.extendleft(reversed(seqs))

    def remove(self, seq: Sequence) -> None:
        """Takes a sequence out for good, wherever it is; what it computed stays in the tree."""
        if seq in self._running:
            self._running.remove(seq)
            if seq.computed > len(seq.path) * BLOCK_TOKENS:
                self._keep_block(seq)
            self._release(seq)
        else:
            self._waiting.remove(seq)

    def schedule(self, budget: int, before_read: Callable[[], None] = lambda: None) -> list[Chunk]:
        """The chunks of the next step, oldest first; empty when there is nothing to compute.

        budget: prompt tokens that the step may compute besides one token of each reply.
        before_read: called before blocks are read from disk.
        """
        self.read_s = 0.0
        self._before_read = before_read
        self._grow_replies()
        self._admit()
        return self._share(max(1, budget))

    def commit(self, chunks: list[Chunk]) -> None:
        """Notes that the chunks were computed; completed blocks enter the tree."""
        for chunk in chunks:
            self.accept(chunk.seq, chunk.count - len(chunk.drafts))

    def accept(self, seq: Sequence, count: int) -> None:
        """Notes `count` more tokens as computed; the blocks they complete enter the tree."""
        seq.computed += count
        while len(seq.path) < seq.computed // BLOCK_TOKENS:
            self._keep_block(seq)

    def check(self) -> None:
        """Asserts that every block is free, private to one sequence, or in the tree."""
        self.tree.check(private=[block for seq in self for block in seq.blocks])

    def _grow_replies(self) -> None:
        # Prompts own all their blocks since they were admitted; only replies grow.
        for seq in list(self._running):
            if seq not in self._running:
                continue  # gave way to an older one in this loop
            need = blocks_for(len(seq.tokens)) - len(seq.path) - len(seq.blocks)
            while need > self.tree.num_available:
                youngest = self._running[-1]
                self._give_way(youngest)
                if youngest is seq:
                    break
            else:
                seq.blocks += self.tree.take(need)

    def _give_way(self, seq: Sequence) -> None:
        self.num_preemptions += 1
        self._running.remove(seq)
        self._release(seq)
        self._waiting.appendleft(seq)  # older than all that wait, for it ran

    def _release(self, seq: Sequence) -> None:
        if seq.reads_prompt_logprobs:
            seq.prompt_logprobs.clear()  # cached blocks hold no logits: it begins again
        seq.note_release()
        self.tree.release(seq.path)
        self.tree.give_back(seq.blocks)
        seq.path, seq.blocks, seq.computed = [], [], 0

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_sequences:
            # In order: a small request never overtakes a large one for ever.
            if not self._place(self._waiting[0]):
                return
            seq = self._waiting.popleft()
            seq.start()
            self._running.append(seq)

    def _place(self, seq: Sequence) -> bool:
        """Gives a sequence what is in memory of it and blocks for the rest, or nothing."""
        node, path = self._root(seq), list[Node]()
        while seq.can_reuse(len(path)) and (
            child := self.tree.child(node, seq.tokens, len(path) * BLOCK_TOKENS)
        ):
            path.append(child)
            node = child
        need = blocks_for(len(seq.tokens)) - len(path)
        num_idle = sum(not each.holders for each in path)  # which will be held
        if need > self.tree.num_available - num_idle:
            return False
        self.tree.hold_path(path)
        seq.path = path
        seq.computed = len(seq.path) * BLOCK_TOKENS
        if self._is_on_disk(seq):
            seq.blocks = self.tree.take(need)  # the first will be read as a whole
        else:
            self._copy_partial_block(seq, node, need)
        seq.note_place()
        return True

    def _copy_partial_block(self, seq: Sequence, node: Node, need: int) -> None:
        """Takes `need` blocks and copies into the first what another one has of its tokens."""
        start = len(seq.path)
        donor, count = self.tree.best_partial(
            node, seq.tokens[start * BLOCK_TOKENS : seq.num_reusable]
        )
        lead = seq.lead
        if lead is not None and len(lead.block_ids) > start:
            # Further choices begin where the first has read the prompt to its end.
            shared = min(seq.num_prompt, lead.computed) - start * BLOCK_TOKENS
            if shared > 0 and shared >= count:
                seq.blocks = self.tree.take(need)
                self._copy_block(lead.block_ids[start], seq.blocks[0])
                seq.computed += shared
                return
        if donor is not None and (donor.holders or need < self.tree.num_available):
            self.tree.hold(donor)  # it must not leave before its tokens are copied
            seq.blocks = self.tree.take(need)
            self._copy_block(donor.block, seq.blocks[0])
            self.tree.release([donor])
            seq.computed += count
        else:
            seq.blocks = self.tree.take(need)

    def _adopt(self, seq: Sequence) -> bool:
        """Takes over blocks of its prompt that others have completed meanwhile or that are on disk.

        False if there is more on disk than this step has time for.
        """
        while seq.can_reuse(len(seq.path)):
            start = len(seq.path) * BLOCK_TOKENS
            child = self.tree.child(self._tip(seq), seq.tokens, start)
            if child is not None:
                self.tree.hold(child)
                self.tree.give_back([seq.blocks.pop(0)])
            elif not self._is_on_disk(seq):
                break
            elif self.read_s and self.read_s >= self._max_read_s:
                return False
            else:
                child = self._read(seq, start)
                if child is None:
                    break
                del seq.blocks[0]
            seq.path.append(child)
            seq.note_adopted(len(seq.path) * BLOCK_TOKENS - seq.computed)
        return True

    def _is_on_disk(self, seq: Sequence) -> bool:
        """Whether the next block of a sequence, of which nothing is computed, can be read."""
        start = len(seq.path) * BLOCK_TOKENS
        return (
            seq.computed == start
            and seq.can_reuse(len(seq.path))
            and self.tree.is_on_disk(self._tip(seq), seq.tokens, start)
        )

    def _read(self, seq: Sequence, start: int) -> Node | None:
        self._before_read()
        started = time.monotonic()
        node = self.tree.load(self._tip(seq), seq.tokens, start, seq.blocks[0])
        self.read_s += time.monotonic() - started
        return node

    def _keep_block(self, seq: Sequence) -> None:
        """Puts the first block that is not in the tree there, with the tokens computed in it."""
        start = len(seq.path) * BLOCK_TOKENS
        tokens = tuple(seq.tokens[start : min(seq.computed, start + BLOCK_TOKENS)])
        seq.path.append(self.tree.insert(self._tip(seq), tokens, seq.blocks.pop(0)))

    def _root(self, seq: Sequence) -> Node:
        return self.tree.root(seq.request.owner)

    def _tip(self, seq: Sequence) -> Node:
        return seq.path[-1] if seq.path else self._root(seq)

    def _share(self, budget: int) -> list[Chunk]:
        counts: dict[int, int] = {}
        prompts: list[Sequence] = []
        claims: set[tuple[int, tuple[int, ...]]] = set()
        for seq in self._running:
            if seq.pending > 1 and not self._adopt(seq):
                continue
            if seq.pending == 1:
                counts[id(seq)] = 1
                continue
            start = len(seq.path) * BLOCK_TOKENS
            claim = (id(self._tip(seq)), tuple(seq.tokens[start : start + BLOCK_TOKENS]))
            if claim in claims and seq.can_reuse(len(seq.path)):
                continue  # an older one computes this very block; it will be in the tree
            claims.add(claim)
            prompts.append(seq)
        counts |= self._share_prompts(prompts, budget)
        drafts_of = self._draft()
        chunks = []
        for seq in self._running:
            drafts = drafts_of.get(id(seq), ())
            if count := counts.get(id(seq)):
                chunks.append(
                    Chunk(
                        seq,
                        seq.computed,
                        count + len(drafts),
                        drafts,
                        reads_logprobs=seq.reads_prompt_logprobs,
                        is_reply=seq.pending == 1,
                    )
                )
        return chunks

    def _share_prompts(self, prompts: list[Sequence], budget: int) -> dict[int, int]:
        """The tokens of each prompt's chunk, which may be none."""
        wants = {id(seq): seq.pending for seq in prompts}
        scored = {id(seq): seq.pending for seq in prompts if seq.reads_prompt_logprobs}
        return split(budget, wants | split(PROMPT_LOGIT_ROWS, scored))

    def _draft(self) -> dict[int, tuple[int, ...]]:
        """Guesses for replies, with blocks for them if they can be had without a sacrifice."""
        replies = [s for s in self._running if s.pending == 1 and not s.request.prompt_only]
        if not self.speculation.may_draft(len(replies)):
            return {}
        found = {}
        for seq in replies:
            room = seq.num_room - 1  # the last token of a reply is never computed
            found[id(seq)] = seq.lookup.propose(seq.tokens, min(MOST_DRAFTS, room))
        counts = self.speculation.share(
            {id(seq): (seq.lookup, len(found[id(seq)])) for seq in replies}
        )
        drafts = {}
        for seq in replies:
            wanted = found[id(seq)][: counts.get(id(seq), 0)]
            need = blocks_for(len(seq.tokens) + len(wanted)) - len(seq.path) - len(seq.blocks)
            if need > self.tree.num_available:
                continue
            seq.blocks += self.tree.take(max(0, need))
            drafts[id(seq)] = wanted
        return drafts
