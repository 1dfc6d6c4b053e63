"""What the engine is asked and what it answers: immutable, and valid once constructed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from samovar.errors import RequestError

FinishReason = Literal["stop", "length"]
MAX_STOP_STRINGS = 4
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MIN_REPEAT_PENALTY = 1e-6  # far below any use, and far above what float32 rounds to zero


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; the order of the samplers is that of the fields.

    logit_bias: (token, value) pairs, added to the logits.
    repeat_penalty: divides (or multiplies, below zero) the logits of the last `repeat_last_n`
        tokens of prompt and reply; 1 is off.
    frequency_penalty, presence_penalty: subtracted for each occurrence in the reply, or once for
        any.
    temperature: 0 takes the most probable token, the lowest id on a tie.
    top_k: 0 is off.  min_p: relative to the most probable token.  top_p: 1 is off.
    seed: 64-bit; the reply is a function of the request and this alone.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    top_p: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        # A negative zero is a zero, also where it is divided by.
        object.__setattr__(self, "temperature", self.temperature + 0.0)
        for _, value in self.logit_bias:
            _check_range("logit_bias", value, -100.0, 100.0)
        _check_range("repeat_penalty", self.repeat_penalty, MIN_REPEAT_PENALTY, 100.0)
        _check_range("repeat_last_n", self.repeat_last_n, 0, 2**31 - 1)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, 0, 2**31 - 1)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        _check_range("seed", self.seed, 0, 2**64 - 1)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is inside of nothing
        raise RequestError(f"{name} is {value}, but must be in [{low:g}, {high:g}].", param=name)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    id: unique among live requests; a server's own, never a client's.
    prompt: token ids, at least one.
    max_tokens: most tokens to generate; 0 means until the context is full.
    stop: strings that end the reply, none of which is part of it.
    end_ids: tokens that end the reply.
    n: how many replies, each with a stream of random numbers of its own.
    logprobs: how many most probable tokens are told with each token of the reply, and its own
        log probability; None tells nothing.
    prompt_logprobs: the same for the tokens of the prompt, which is then computed from its start.
    prompt_only: nothing is generated; the one delta ends with `length`.
    owner: whose cached prefixes this request may find and leave behind.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_only: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        _check_range("n", self.n, 1, MAX_CHOICES)
        if self.prompt_only and self.n > 1:
            raise RequestError("A prompt alone has one result, not n.", param="n")
        _check_range("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        _check_range("logprobs", self.prompt_logprobs or 0, 0, MAX_LOGPROBS)
        if not self.prompt:
            raise RequestError("The prompt is empty.", param="prompt")
        _check_range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        if len(self.stop) > MAX_STOP_STRINGS or "" in self.stop:
            raise RequestError(
                f"stop takes up to {MAX_STOP_STRINGS} non-empty strings.", param="stop"
            )


class Usage(NamedTuple):  # one is made for each token, as is a Delta
    """Token counts and times of one request; times in seconds, None until they are known."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    accepted_draft_tokens: int = 0
    rejected_draft_tokens: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability in the model's own distribution, before any sampling filter.

    top: (token, log probability) of the most probable ones, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Delta(NamedTuple):
    """What one step adds to a reply.

    text: may be empty (tokens of an unfinished character, or of a possible stop string).
    tokens: ids sampled since the last delta, the end token included.
    logprobs: one for each of `tokens`, if the request asks for them.
    prompt_logprobs: with the first delta of the request, one for each token of the prompt but the
        first, which follows nothing.
    choice: which of the request's n replies this belongs to.
    finish_reason: set on the last delta of a choice only.
    usage: counts so far.
    error: the request failed in the engine (its row met a non-finite value); it is the last delta
        of the whole request.
    """

    text: str
    tokens: tuple[int, ...]
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
