"""Many clients at once on a running server; the same client program for every server."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rows import HTTP_ONE, HTTP_TOKENS, HTTP_TTFT, Samples, Work

from samovar.cache import cache_directory
from samovar.checkpoint import open_checkpoint
from samovar.text.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from client import Reply, complete, prompt


class Prompts:
    """Texts of exactly so many tokens, each unlike every other one from its first words on."""

    def __init__(self, model: Path, num_tokens: int) -> None:
        source = open_checkpoint(model).tokenizer
        self._tokenizer = Tokenizer.build(source, cache_dir=cache_directory())
        self._num_tokens = num_tokens
        self._numbers = itertools.count(time.monotonic_ns() % 1_000_000)

    def take(self, count: int) -> list[str]:
        """The next texts."""
        return list(itertools.islice(self._texts(), count))

    def _texts(self) -> Iterator[str]:
        for number in self._numbers:
            for num_words in range(self._num_tokens, 0, -1):
                text = prompt(number, num_words)
                length = len(self._tokenizer.encode(text, special=True))
                if length == self._num_tokens:
                    yield text
                if length <= self._num_tokens:
                    break


def measure_http(url: str, work: Work, fields: Mapping[str, Any], prompts: Prompts) -> Samples:
    """One round: each client sends one request, all at the same moment."""
    (clients,) = work.streams
    wall, replies = asyncio.run(_round(url, prompts.take(clients), work.tokens, fields))
    wanted = (work.prompt, work.tokens)
    for each in replies:
        if (found := (each.prompt_tokens, each.completion_tokens)) != wanted:
            raise SystemExit(f"{url}: a reply has {found} tokens of prompt and reply, not {wanted}")
    if clients == 1:
        (reply,) = replies
        return {HTTP_ONE: [(work.tokens - 1) / (reply.last_s - reply.first_s)]}
    ttft = [each.first_s for each in replies]
    return {
        HTTP_TOKENS: [clients * work.tokens / wall],
        HTTP_TTFT: [statistics.quantiles(ttft, n=20, method="inclusive")[-1]],
    }


async def _round(
    url: str, texts: list[str], num_tokens: int, fields: Mapping[str, Any]
) -> tuple[float, list[Reply]]:
    """Seconds that it took in all, and each reply's own figures."""
    started = time.monotonic()
    replies = await asyncio.gather(*(complete(url, text, num_tokens, fields) for text in texts))
    return time.monotonic() - started, replies
