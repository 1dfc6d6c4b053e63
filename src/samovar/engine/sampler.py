"""From logits to tokens and log probabilities: the arguments and results of the native sampler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any, NamedTuple

from samovar import _native as native
from samovar.engine.request import SamplingParams, TokenLogprob
from samovar.engine.sequence import Sequence
from samovar.engine.step import int32_array


class Draw(NamedTuple):  # a few are made for each token
    """One token to be sampled: from which row of the logits, and after which tokens.

    drafted: drafts that stand between the sequence's tokens and the new one.
    """

    seq: Sequence
    row: int
    drafted: tuple[int, ...] = ()


class Drawn(NamedTuple):
    """The token of a draw, with its log probability if the request asks for it."""

    draw: Draw
    token: int
    logprob: TokenLogprob | None


class Sampler:
    """Samples from the logits of a runner's last step."""

    def __init__(self, runner: native.Runner) -> None:
        self._runner = runner
        self._asked: list[tuple[SamplingParams, int]] = []
        self._constant: dict[str, array[Any]] = {}

    def sample(self, draws: list[Draw]) -> list[Drawn]:
        """One token for each draw, in order.

        A draw is keyed by (seed, choice, position of the new token) and depends on nothing else.
        """
        tokens = self._runner.sample(**self._arguments(draws))
        asking = [i for i, draw in enumerate(draws) if draw.seq.request.logprobs is not None]
        tops = [draws[i].seq.request.logprobs or 0 for i in asking]
        found = self.logprobs([draws[i].row for i in asking], [tokens[i] for i in asking], tops)
        logprobs: list[TokenLogprob | None] = [None] * len(draws)
        for i, logprob in zip(asking, found, strict=True):
            logprobs[i] = logprob
        return [Drawn(*drawn) for drawn in zip(draws, tokens, logprobs, strict=True)]

    def logprobs(
        self, rows: Items[int], tokens: Items[int], tops: Items[int]
    ) -> list[TokenLogprob]:
        """Of tokens[i] in logits row rows[i], with the tops[i] most probable tokens."""
        if not rows:
            return []
        own, top_tokens, top_logprobs = self._runner.logprobs(
            rows=int32_array(rows), tokens=int32_array(tokens), top=max(tops)
        )
        return [
            TokenLogprob(token, logprob, tuple(zip(ids[:top], values[:top], strict=True)))
            for token, logprob, ids, values, top in zip(
                tokens, own.tolist(), top_tokens.tolist(), top_logprobs.tolist(), tops, strict=True
            )
        ]

    def _arguments(self, draws: list[Draw]) -> dict[str, array[Any]]:
        """The arguments of the native sampler, one row for each draw."""
        # Mostly the replies of a step are those of the step before: what they ask for is kept.
        asked = [(draw.seq.request.sampling, draw.seq.choice) for draw in draws]
        if asked != self._asked:
            self._asked, self._constant = asked, _constant_arrays(asked)
        repeat_start, repeat_tokens = _ragged([_repeated(draw) for draw in draws])
        reply_start, reply_tokens = _ragged([_replied(draw) for draw in draws])
        return {
            **self._constant,
            "rows": int32_array([draw.row for draw in draws]),
            "position": int32_array([len(draw.seq.tokens) + len(draw.drafted) for draw in draws]),
            "repeat_start": repeat_start,
            "repeat_tokens": repeat_tokens,
            "reply_start": reply_start,
            "reply_tokens": reply_tokens,
        }


def _repeated(draw: Draw) -> list[int]:
    """The tokens that the repeat penalty lowers."""
    p = draw.seq.request.sampling
    if p.repeat_penalty == 1.0 or not p.repeat_last_n:
        return []
    return [*draw.seq.tokens[-p.repeat_last_n :], *draw.drafted][-p.repeat_last_n :]


def _replied(draw: Draw) -> list[int]:
    """The tokens that frequency and presence penalties count."""
    p = draw.seq.request.sampling
    if not p.frequency_penalty and not p.presence_penalty:
        return []
    return [*draw.seq.reply, *draw.drafted]


def _constant_arrays(asked: list[tuple[SamplingParams, int]]) -> dict[str, array[Any]]:
    """What the draws ask of the sampler, at whatever position."""
    params = [p for p, _ in asked]
    biases = [p.logit_bias for p in params]
    bias_start, bias_tokens = _ragged([[token for token, _ in bias] for bias in biases])
    return {
        "bias_start": bias_start,
        "bias_tokens": bias_tokens,
        "bias_values": _float32([value for bias in biases for _, value in bias]),
        "temperature": _float32([p.temperature for p in params]),
        "top_k": int32_array([p.top_k for p in params]),
        "top_p": _float32([p.top_p for p in params]),
        "min_p": _float32([p.min_p for p in params]),
        "repeat_penalty": _float32([p.repeat_penalty for p in params]),
        "frequency_penalty": _float32([p.frequency_penalty for p in params]),
        "presence_penalty": _float32([p.presence_penalty for p in params]),
        "seed": array("Q", [p.seed for p in params]),
        "choice": array("I", [choice for _, choice in asked]),
    }


def _ragged(lists: list[list[int]]) -> tuple[array[int], array[int]]:
    """Where each list starts, and the end; then all of them, one after the other."""
    starts = list(accumulate(map(len, lists), initial=0))
    return int32_array(starts), int32_array([item for items in lists for item in items])


def _float32(values: Items[float]) -> array[float]:
    return array("f", values)
