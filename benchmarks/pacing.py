"""How long running replies wait for their next token while a long prompt is read.

Eight streams run; after a second a prompt of some 4,000 tokens arrives.  All gaps between two
tokens that end while it is being read are counted, once with the default of `--max-step-ms` and
once without a bound.  Besides, how fast `/health` answers while 16 streams run.

    python benchmarks/pacing.py smollm2 --repeat 3
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

from client import events, get, prompt, server

TEXT = (Path(__file__).parent / "data" / "opticks.txt").read_text()
STREAM_TOKENS = 700
BOUNDS = {"default": [], "without a bound": ["--max-step-ms", "600000", "--batch", "8192"]}


def fixed_length(text: str, num_tokens: int) -> dict[str, object]:
    return {"prompt": text, "max_tokens": num_tokens, "temperature": 1.0, "seed": 1, "stream": True}


async def times(url: str, text: str, num_tokens: int) -> list[float]:
    """When each piece of a reply came."""
    body = fixed_length(text, num_tokens)
    return [at for at, data in await events(url, "/completions", body) if b'"text"' in data]


async def with_a_long_prompt(url: str, index: int, num_chars: int) -> tuple[list[float], float]:
    """Gaps of the running streams in seconds, and how long the prompt waited."""
    running = [
        asyncio.create_task(times(url, prompt(100 * index + i, 60), STREAM_TOKENS))
        for i in range(8)
    ]
    await asyncio.sleep(1.0)
    begin = time.monotonic()
    first, *_ = await times(url, TEXT[500 * index : 500 * index + num_chars], 1)
    gaps = []
    for arrivals in await asyncio.gather(*running):
        gaps += [b - a for a, b in itertools.pairwise(arrivals) if begin <= b and a <= first]
    return gaps, first - begin


async def health(url: str, index: int) -> list[float]:
    """Seconds that /health takes while 16 streams run."""
    running = [
        asyncio.create_task(times(url, prompt(1000 + 100 * index + i, 60), 300)) for i in range(16)
    ]
    parts = urlsplit(url)
    seconds = []
    await asyncio.sleep(0.3)
    while not any(task.done() for task in running):
        seconds.append(await get(f"{parts.scheme}://{parts.netloc}/health"))
        await asyncio.sleep(0.01)
    await asyncio.gather(*running)
    return seconds


def centile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--chars", type=int, default=16500)
    parser.add_argument("--repeat", type=int, default=3)
    args, options = parser.parse_known_args()
    options += ["--ctx", "8192", "--speculate", "off"]
    for name, bound in BOUNDS.items():
        p95, waits = [], []
        with server(args.model, [*options, *bound]) as url:
            asyncio.run(times(url, "Hello", 16))  # warm up
            for index in range(args.repeat):
                gaps, wait = asyncio.run(with_a_long_prompt(url, index, args.chars))
                p95.append(1000 * centile(gaps, 0.95))
                waits.append(wait)
        rounds = ", ".join(f"{value:.0f}" for value in p95)
        print(
            f"{name}: p95 gap {statistics.median(p95):.0f} ms ({rounds});"
            f" the prompt waits {statistics.median(waits):.1f} s"
        )
    with server(args.model, options) as url:
        asyncio.run(times(url, "Hello", 16))
        seconds = [s for index in range(args.repeat) for s in asyncio.run(health(url, index))]
    p99 = 1000 * centile(seconds, 0.99)
    print(f"/health under 16 streams: p99 {p99:.1f} ms, {len(seconds)} asked")


if __name__ == "__main__":
    main()
