"""The life of one request inside the engine."""

from __future__ import annotations

import time

from samovar.engine.blocks import BLOCK_TOKENS
from samovar.engine.prefix import Node
from samovar.engine.request import Delta, FinishReason, Request, TokenLogprob, Usage
from samovar.engine.speculate import Lookup
from samovar.text.detokenizer import Detokenizer
from samovar.text.stops import StopMatcher
from samovar.text.tokenizer import Tokenizer


class Sequence:
    """Tokens of a request, how many of them are computed, and the blocks that hold their KV.

        tokens   [ prompt ............. | reply ........ ]
        computed [ in the cache ............... ]
        pending                                 [ the rest ]     one token while decoding
        path     [ 32 | 32 | 32 | 32 | 32 ]                      nodes of the prefix tree, shared
        blocks                            [ 32 | 32 ]            private: unfinished or not begun

    A sequence that gives its blocks back keeps its tokens: all of them are pending again.
    Engine thread only.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        num_ctx: int,
        *,
        choice: int = 0,
        lead: Sequence | None = None,
    ) -> None:
        self.request = request
        self.choice = choice
        self.lead = lead  # the choice that computed the prompt for this one
        self.lookup = Lookup()
        self.num_accepted = 0
        self.num_rejected = 0
        self.tokens = list(request.prompt)
        self.computed = 0
        self.path: list[Node] = []
        self.blocks: list[int] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.cached: int | None = None  # prompt tokens that were found in the cache
        self._num_found = 0  # that had been found when it last computed some itself
        self._furthest = 0  # tokens that it had then; what is found beyond is another's
        self._taken = 0  # of `computed`, up to where it last found some
        self.num_prompt = len(request.prompt)
        room = num_ctx - self.num_prompt
        self._max_reply = min(request.max_tokens or room, room)
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(request.stop)
        self._submitted_at = time.monotonic()
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at: float | None = None

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def block_ids(self) -> list[int]:
        return [node.block for node in self.path] + self.blocks

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose KV may come from elsewhere; cached blocks hold no logits."""
        return 0 if self.reads_prompt_logprobs else len(self.tokens) - 1

    @property
    def reads_prompt_logprobs(self) -> bool:
        """Whether logits of the prompt are still to be read."""
        wanted = self.request.prompt_logprobs is not None and not self.choice
        return wanted and len(self.prompt_logprobs) < self.num_prompt - 1

    def can_reuse(self, block: int) -> bool:
        """Whether all tokens of the block with this index are reusable."""
        return (block + 1) * BLOCK_TOKENS <= self.num_reusable

    @property
    def num_room(self) -> int:
        """Tokens that the reply may still grow by."""
        return self._max_reply - self.num_reply

    @property
    def num_reply(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def reply(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    def start(self) -> None:
        """Notes the moment at which the sequence first leaves the queue."""
        if self._started_at is None:
            self._started_at = time.monotonic()

    def start_as(self, lead: Sequence) -> None:
        """Counts time and cached tokens from where the first choice of the request did."""
        self._submitted_at, self._started_at = lead._submitted_at, lead._started_at
        self.cached = lead.cached

    def note_place(self) -> None:
        """Counts what was found in the cache by a sequence that was just given its blocks."""
        self._taken = self.computed
        if self.cached is None:
            self.cached = self.computed
        elif self._counts_cached:
            self.cached = self._count_found(0, 0)

    def note_adopted(self, count: int) -> None:
        """Counts tokens that another sequence has computed meanwhile, or that are on disk."""
        before = self.computed
        self.computed = self._taken = before + count
        if self._counts_cached:
            self.cached = self._count_found(self.cached or 0, before)

    def note_release(self) -> None:
        """Remembers what it computed itself: when that is found again it is not counted."""
        if self._counts_cached and self.computed > self._taken:
            self._num_found, self._furthest = self.cached or 0, max(self._furthest, self.computed)
        self._taken = 0

    def _count_found(self, cached: int, before: int) -> int:
        """`cached` and what was found of the tokens from `before` to `computed`."""
        new = max(0, self.computed - max(before, self._furthest))
        again = self.computed - before - new
        return cached + new + min(again, max(0, self._num_found - cached))

    @property
    def _counts_cached(self) -> bool:
        """Not once there is a reply, when it is told; further choices repeat what the first has."""
        return not self.num_reply and not self.choice

    def append(self, token: int, logprob: TokenLogprob | None = None) -> Delta:
        """Adds a sampled token; the one place where text is made and the end is decided."""
        self._last_token_at = time.monotonic()
        if self._first_token_at is None:
            self._first_token_at = self._last_token_at
        self.tokens.append(token)

        ended = token in self.request.end_ids
        full = self.num_reply >= self._max_reply
        text, stopped = ("", False) if ended else self._stops.push(self._detokenizer.push((token,)))
        if not stopped and (ended or full):
            # What an unfinished character or a possible stop string held back is text after all.
            tail, stopped = self._stops.push(self._detokenizer.finish())
            text += tail if stopped else tail + self._stops.finish()
        reason: FinishReason | None = None
        if ended or stopped:
            reason = "stop"
        elif full:
            reason = "length"
        first = not self.choice and self.num_reply == 1
        return Delta(
            logprobs=() if logprob is None else (logprob,),
            prompt_logprobs=tuple(self.prompt_logprobs) if first else (),
            text=text,
            tokens=(token,),
            usage=self.usage(),
            choice=self.choice,
            finish_reason=reason,
        )

    def finish_prompt(self) -> Delta:
        """The one delta of a request that generates nothing."""
        return Delta(
            text="",
            tokens=(),
            usage=self.usage(),
            prompt_logprobs=tuple(self.prompt_logprobs),
            finish_reason="length",
        )

    def fail(self, message: str) -> Delta:
        """The last delta of a request that cannot go on."""
        return Delta(text="", tokens=(), usage=self.usage(), choice=self.choice, error=message)

    def usage(self) -> Usage:
        started, first, last = self._started_at, self._first_token_at, self._last_token_at
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_reply,
            cached_tokens=self.cached or 0,
            accepted_draft_tokens=self.num_accepted,
            rejected_draft_tokens=self.num_rejected,
            queue_s=None if started is None else started - self._submitted_at,
            ttft_s=None if first is None else first - self._submitted_at,
            decode_s=None if first is None or last is None else last - first,
        )
