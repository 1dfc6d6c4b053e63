"""How many prompt tokens a step may compute while replies wait for it."""

from __future__ import annotations

SMOOTHING = 0.2  # weight of the newest step
ALARM = 0.5  # its weight if it lasted longer than expected: later tokens of a prompt cost more
HEADROOM = 0.8  # of the longest step that is aimed at, since steps vary
SMALLEST_BUDGET = 16


class Pace:
    """Learns what a step costs and keeps it short while anyone waits for a next token.

    A step is taken to last a + b * prompt tokens.  a: steps without prompt tokens are its samples.
    b: from steps with some.  Both are moving averages, since the machine is shared with others.
    """

    def __init__(self, batch: int, max_step_s: float) -> None:
        self._batch = batch
        self._max_step_s = max_step_s
        self._reply_step_s = 0.0
        self._prompt_token_s = 0.0

    def budget(self, num_replies: int) -> int:
        """Prompt tokens for the next step, in which `num_replies` replies get a token each."""
        most = self._batch - num_replies
        if num_replies and self._prompt_token_s:
            spare_s = HEADROOM * self._max_step_s - self._reply_step_s
            most = min(most, max(SMALLEST_BUDGET, int(spare_s / self._prompt_token_s)))
        return max(1, most)

    def note(self, num_replies: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learns from a step that was made."""
        if not num_prompt_tokens:
            self._reply_step_s += SMOOTHING * (seconds - self._reply_step_s)
        elif num_prompt_tokens >= SMALLEST_BUDGET:
            reply_s = self._reply_step_s if num_replies else 0.0
            sample = max(0.0, seconds - reply_s) / num_prompt_tokens
            if not self._prompt_token_s:
                self._prompt_token_s = sample
            weight = ALARM if sample > self._prompt_token_s else SMOOTHING
            self._prompt_token_s += weight * (sample - self._prompt_token_s)
