"""Drafts from a sequence's own tokens: they change the speed, never the reply."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

GRAM = 3  # tokens that must have occurred before
MOST_DRAFTS = 8  # in one step
MOST_REPLIES = 4  # with more replies in a step its matmuls are busy anyway
SMOOTHING = 0.1
TRIAL_STEPS = 64  # after a pause of so many steps drafts are tried again


class NGrams:
    """Where each run of GRAM tokens of one sequence last occurred."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._num_indexed = GRAM

    def propose(self, tokens: Tokens[int], most: int) -> tuple[int, ...]:
        """What followed the last GRAM tokens when they occurred before; empty if they did not."""
        for end in range(self._num_indexed, len(tokens)):
            self._next[tuple(tokens[end - GRAM : end])] = end
        self._num_indexed = max(self._num_indexed, len(tokens))
        start = self._next.get(tuple(tokens[-GRAM:]))
        return () if start is None else tuple(tokens[start : start + most])


class Speculation:
    """Decides how many drafts a step may hold, from what they gained so far.

    A step with drafts yields more tokens but lasts longer: it pays while tokens a step, over those
    without drafts, exceed the ratio of the two durations.  Both are moving averages.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._plain_s = 0.0  # a step of one row for each reply
        self._ratio = 1.0  # duration of a step with drafts over one without
        self._gain = 2.0  # tokens of a reply in a step with drafts; hopeful at first
        self._pause = 0

    def draft_budget(self, num_replies: int) -> int:
        """Drafts that the next step, with `num_replies` replies in it, may check in all."""
        if self._mode == "off" or num_replies > MOST_REPLIES:
            return 0
        if self._mode == "ngram":
            return MOST_DRAFTS
        if self._pause:
            self._pause -= 1
            return 0
        return MOST_DRAFTS

    def note(self, drafted: int, accepted: int, num_drafting: int, seconds: float) -> None:
        """Learns from a step of replies only; all counts are sums over the replies with drafts."""
        if not drafted:
            weight = SMOOTHING if self._plain_s else 1.0
            self._plain_s += weight * (seconds - self._plain_s)
            return
        if self._plain_s:
            self._ratio += SMOOTHING * (seconds / self._plain_s - self._ratio)
        self._gain += SMOOTHING * (1 + accepted / num_drafting - self._gain)
        if self._gain < self._ratio:
            self._pause = TRIAL_STEPS
            self._gain = self._ratio  # one failure after the pause stops it again
