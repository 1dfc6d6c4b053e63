"""The engine: requests go in, one step at a time computes them together, deltas come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from samovar.engine.blocks import BlockPool
from samovar.engine.load import EngineOptions, LoadedModel, Progress, load_model
from samovar.engine.pace import HEADROOM, Pace
from samovar.engine.prefix import PrefixTree
from samovar.engine.request import Delta, Request
from samovar.engine.sampler import Draw, Drawn, Sampler
from samovar.engine.scheduler import Chunk, Scheduler
from samovar.engine.sequence import Sequence
from samovar.engine.speculate import Speculation
from samovar.engine.step import step_arrays
from samovar.errors import ContextOverflow, QueueFull, RequestError

NOT_FINITE = "The model computed a value that is not a finite number."


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of counters.

    blocks_used: held by running sequences.  blocks_cached: kept for later prompts only.
    preemptions: how often a sequence had to give its blocks back.
    last_step_at: a time.monotonic() moment.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    preemptions: int
    steps: int
    tokens_computed: int
    last_step_at: float


class Computed(NamedTuple):
    """A chunk after its step.

    first_logit_row: the first of its rows among the logits of the step.
    num_good: its rows before the first that met a value that is not finite; later ones may have
        read what that one left.
    """

    chunk: Chunk
    first_logit_row: int
    num_good: int

    @property
    def failed(self) -> bool:
        """Whether a token of the sequence is bad; a bad draft is none, nor are those after it."""
        return self.num_good < self.chunk.count - len(self.chunk.drafts)


class Engine:
    """Runs one model.  All methods belong to one thread, except `check` and `stats`.

    The reply to a request is a function of the request and the model alone: neither the
    other requests, nor the number of threads, nor the size of a step changes a bit of it.
    """

    def __init__(self, model: LoadedModel, options: EngineOptions) -> None:
        self.info = model.info
        self.tokenizer = model.tokenizer
        self.template = model.template
        self.end_ids = model.end_ids
        self._runner = model.runner
        self._sampler = Sampler(model.runner)
        self._disk = model.disk
        self._num_blocks = model.num_blocks
        self._tree = PrefixTree(BlockPool(model.num_blocks), model.disk)
        self._speculation = Speculation(options.speculate)
        self._scheduler = Scheduler(
            self._tree,
            self._speculation,
            max_sequences=options.max_sequences,
            copy_block=model.cache.copy_block,
            max_read_s=(1 - HEADROOM) * options.max_step_ms / 1000,
        )
        self._pace = Pace(options.batch, options.max_step_ms / 1000)
        self._max_replies = options.max_sequences + options.max_queue
        self._sequences: dict[str, list[Sequence]] = {}  # the unfinished choices of each request
        self._steps = 0
        self._tokens_computed = 0
        self._last_step_at = time.monotonic()

    @classmethod
    def load(
        cls,
        path: Path,
        options: EngineOptions | None = None,
        *,
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """An engine for the model file at `path`; see `load_model`."""
        options = options or EngineOptions()
        return cls(load_model(path, options, sha256=sha256, progress=progress), options)

    def check(self, request: Request, *, param: str = "prompt") -> None:
        """Raises what `submit` would raise; thread-safe.  `param` names the field in the error."""
        # A reply needs room for its first token; what is only scored does not.
        if len(request.prompt) + (not request.prompt_only) > self.info.num_ctx:
            raise ContextOverflow(len(request.prompt), self.info.num_ctx, param=param)
        vocab_size = self.tokenizer.vocab_size
        for token, _ in request.sampling.logit_bias:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"logit_bias names token {token}; this model has 0 to {vocab_size - 1}.",
                    param="logit_bias",
                )
        if max(request.logprobs or 0, request.prompt_logprobs or 0) > vocab_size:
            raise RequestError(
                f"logprobs asks for more than the {vocab_size} tokens of this model.",
                param="logprobs",
            )
        if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
            raise RequestError(
                f"The prompt holds a token id outside of 0 to {vocab_size - 1}.", param=param
            )

    def check_queue(self, num_new: int, num_owed: int, *, param: str = "prompt") -> None:
        """Whether `num_new` replies find places beside `num_owed` unfinished ones; thread-safe.

        Raises QueueFull, or RequestError naming `param` for more than there could ever be.
        """
        if num_new > self._max_replies:
            raise RequestError(
                f"The request asks for {num_new} replies at once; this server takes"
                f" {self._max_replies}.",
                param=param,
            )
        if num_new + num_owed > self._max_replies:
            raise QueueFull(num_owed)

    def submit(self, request: Request) -> None:
        """Queues a request; its id must not be in use."""
        self.check(request)
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id!r} is in use")
        seq = Sequence(request, self.tokenizer, self.info.num_ctx)
        self._sequences[request.id] = [seq]
        self._scheduler.add(seq)

    def abort(self, request_id: str) -> None:
        """Drops a request wherever it is, at once; an unknown id is one that has ended already."""
        for seq in self._sequences.pop(request_id, []):
            self._scheduler.remove(seq)

    def abort_all(self) -> None:
        """Drops every request."""
        for request_id in list(self._sequences):
            self.abort(request_id)

    def close(self) -> None:
        """Drops every request and writes what is still to be kept on disk."""
        self.abort_all()
        if self._disk is not None:
            self._disk.close()

    def step(
        self, before_wait: Callable[[], None] = lambda: None
    ) -> list[tuple[str, Delta]] | None:
        """Computes one step; what each request gained by it, or None if there is nothing to do.

        before_wait: called when the GIL is about to be free for long: before blocks are read from
            disk, and when all is ready to compute.
        """
        started = time.monotonic()
        budget = self._pace.budget(self._scheduler.num_decoding)
        chunks = self._scheduler.schedule(budget, before_wait)
        if not chunks:
            if not self._scheduler.read_s:
                return None
            self._last_step_at = time.monotonic()
            return []  # blocks were read from disk, and there are more
        computed = self._compute(chunks, before_wait)
        # A failed chunk is as if it had not been computed: nobody shall find what it left behind.
        self._scheduler.commit([each.chunk for each in computed if not each.failed])
        deltas = self._finish_step(computed)
        self._steps += 1
        self._tokens_computed += sum(chunk.count for chunk in chunks)
        self._last_step_at = time.monotonic()
        self._learn(chunks, self._last_step_at - started - self._scheduler.read_s)
        return deltas

    def generate(self, requests: Iterable[Request]) -> Iterator[tuple[str, Delta]]:
        """Runs requests to their ends together; closing the iterator drops the unfinished ones."""
        live: set[str] = set()
        try:
            for request in requests:
                self.submit(request)
                live.add(request.id)
            while live:
                for request_id, delta in self.step() or []:
                    if request_id not in self._sequences:
                        live.discard(request_id)
                    yield request_id, delta
        finally:
            for request_id in live:
                self.abort(request_id)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do until a request comes."""
        return not self._sequences

    def stats(self) -> EngineStats:
        """Counters for operators; thread-safe, since each is read once."""
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            blocks_used=self._num_blocks - self._tree.num_available,
            blocks_cached=self._tree.num_idle,
            blocks_total=self._num_blocks,
            preemptions=self._scheduler.num_preemptions,
            steps=self._steps,
            tokens_computed=self._tokens_computed,
            last_step_at=self._last_step_at,
        )

    def profile(self, enabled: bool | None = None) -> list[dict[str, Any]]:
        """Switches the profile of native operations on or off and returns what it holds."""
        return self._runner.profile(enabled)

    def forget(self) -> None:
        """Empties the cache of prefixes that no running request holds."""
        self._tree.forget()

    def check_blocks(self) -> None:
        """Asserts that no block is lost or shared; for idle moments and tests."""
        self._scheduler.check()

    def _compute(self, chunks: list[Chunk], before_wait: Callable[[], None]) -> list[Computed]:
        """Runs the model on the chunks."""
        arrays = step_arrays(chunks)
        before_wait()
        bad_rows = self._runner.run(**arrays)
        computed = []
        row = logit_row = 0
        for chunk in chunks:
            bad = [bad_row - row for bad_row in bad_rows if row <= bad_row < row + chunk.count]
            computed.append(Computed(chunk, logit_row, min(bad, default=chunk.count)))
            row += chunk.count
            logit_row += chunk.num_logit_rows
        return computed

    def _finish_step(self, computed: list[Computed]) -> list[tuple[str, Delta]]:
        """Samples after every chunk that reached its end, and ends what has ended."""
        deltas: list[tuple[str, Delta]] = []
        for each in computed:
            request_id = each.chunk.seq.request.id
            if each.failed and request_id in self._sequences:
                deltas.append((request_id, each.chunk.seq.fail(NOT_FINITE)))
                self.abort(request_id)
        draws: list[Draw] = []
        for each in computed:
            chunk, seq = each.chunk, each.chunk.seq
            if seq.request.id not in self._sequences:
                continue
            if chunk.reads_logprobs:
                self._read_prompt_logprobs(chunk, each.first_logit_row)
            if chunk.reaches_end and seq.request.prompt_only:
                deltas.append((seq.request.id, seq.finish_prompt()))
                self._end(seq)
            elif chunk.reaches_end:
                draws += self._draws(each)
        if draws:
            drawn = self._sampler.sample(draws)
            for seq, own in groupby(drawn, key=lambda each: each.draw.seq):
                deltas += self._accept(seq, list(own))
        return deltas

    def _draws(self, computed: Computed) -> list[Draw]:
        """The tokens to sample after a chunk that reached its end."""
        chunk = computed.chunk
        num_bad = chunk.count - computed.num_good
        drafts = chunk.drafts[: len(chunk.drafts) - num_bad]
        first_row = computed.first_logit_row + chunk.num_logit_rows - 1 - len(chunk.drafts)
        draws = [Draw(chunk.seq, first_row + i, drafts[:i]) for i in range(len(drafts) + 1)]
        return draws + [Draw(other, first_row) for other in self._fork(chunk.seq)]

    def _read_prompt_logprobs(self, chunk: Chunk, first_row: int) -> None:
        """Each row of the chunk foretells the prompt token after it."""
        seq = chunk.seq
        targets = seq.request.prompt[chunk.start + 1 : chunk.start + chunk.count + 1]
        rows = range(first_row, first_row + len(targets))
        tops = [seq.request.prompt_logprobs or 0] * len(targets)
        seq.prompt_logprobs += self._sampler.logprobs(rows, targets, tops)

    def _fork(self, lead: Sequence) -> list[Sequence]:
        """The further choices of a request whose prompt was just read, if it has any."""
        request = lead.request
        if lead.choice or lead.num_reply or request.n == 1:
            return []
        others = [
            Sequence(request, self.tokenizer, self.info.num_ctx, choice=choice, lead=lead)
            for choice in range(1, request.n)
        ]
        for other in others:
            other.start_as(lead)
        self._sequences[request.id] += others
        self._scheduler.add_first(others)
        return others

    def _accept(self, seq: Sequence, drawn: list[Drawn]) -> list[tuple[str, Delta]]:
        """Appends the first token drawn, and further ones as long as the drafts were right."""
        deltas: list[Delta] = []
        drafts = drawn[-1].draw.drafted
        num_right = 0
        for i, each in enumerate(drawn):
            delta = seq.append(each.token, each.logprob)
            deltas.append(delta)
            is_right = i < len(drafts) and each.token == drafts[i]
            num_right += is_right
            if delta.finish_reason or not is_right:
                break
        if drafts:
            seq.num_accepted += num_right
            seq.num_rejected += len(drafts) - num_right
            deltas[-1] = deltas[-1]._replace(usage=seq.usage())
        # The last token waits for its own step, a right draft or not.
        self._scheduler.accept(seq, len(deltas) - 1)
        if deltas[-1].finish_reason:
            self._end(seq)
        return [(seq.request.id, delta) for delta in deltas]

    def _end(self, seq: Sequence) -> None:
        self._scheduler.remove(seq)
        choices = self._sequences[seq.request.id]
        choices.remove(seq)
        if not choices:
            del self._sequences[seq.request.id]

    def _learn(self, chunks: list[Chunk], seconds: float) -> None:
        replies = [chunk for chunk in chunks if chunk.is_reply]
        num_prompt_tokens = sum(chunk.count for chunk in chunks if not chunk.is_reply)
        num_drafts = sum(len(chunk.drafts) for chunk in replies)
        if not num_drafts:
            self._pace.note(len(replies), num_prompt_tokens, seconds)
        if not num_prompt_tokens:
            self._speculation.note(len(replies), num_drafts, seconds)
