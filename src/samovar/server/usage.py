"""What a request has cost: a prompt counts once, each of its replies counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from samovar.engine.request import Usage


class Tally:
    """The latest counts of every reply of one request, discarded candidates included."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], Usage] = {}

    def __bool__(self) -> bool:
        return bool(self._latest)

    def note(self, prompt: int, choice: int, usage: Usage) -> None:
        """Takes the counts so far of one choice of one prompt."""
        self._latest[prompt, choice] = usage

    @property
    def replies(self) -> Iterable[Usage]:
        return self._latest.values()

    @property
    def _prompts(self) -> Iterable[Usage]:
        return {prompt: usage for (prompt, _), usage in self._latest.items()}.values()

    @property
    def prompt_tokens(self) -> int:
        return sum(usage.prompt_tokens for usage in self._prompts)

    @property
    def cached_tokens(self) -> int:
        return sum(usage.cached_tokens for usage in self._prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(usage.completion_tokens for usage in self.replies)

    @property
    def queue_s(self) -> float | None:
        """The longest wait of any prompt."""
        return max((u.queue_s for u in self._prompts if u.queue_s is not None), default=None)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first of each reply, a second of the longest decode."""
        num_tokens = sum(max(usage.completion_tokens - 1, 0) for usage in self.replies)
        decode_s = max((usage.decode_s or 0.0 for usage in self.replies), default=0.0)
        return num_tokens / decode_s if num_tokens and decode_s else None

    def as_object(self) -> dict[str, Any]:
        """The `usage` of a reply."""
        prompt_tokens, completion_tokens = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": sum(u.accepted_draft_tokens for u in self.replies),
                "rejected_prediction_tokens": sum(u.rejected_draft_tokens for u in self.replies),
            },
        }
