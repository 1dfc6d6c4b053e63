"""Tokens per second over HTTP, for one stream and for several at once.

Starts `samovar serve` on a free port of the loopback; each request has a prompt of its own and asks
for a fixed number of tokens.  Compare one stream with `samovar bench` run just before and after,
since the machine's speed drifts.

    python benchmarks/serve.py smollm2 --streams 1 8 --tokens 128 --repeat 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from client import complete, prompt, server


async def measure(url: str, num_streams: int, num_words: int, num_tokens: int) -> dict[str, float]:
    """One round of `num_streams` requests at once."""
    salt = time.monotonic_ns() % 1_000_000
    started = time.monotonic()
    replies = await asyncio.gather(
        *(complete(url, prompt(salt + i, num_words), num_tokens, {}) for i in range(num_streams))
    )
    wall = time.monotonic() - started
    total = sum(reply.completion_tokens for reply in replies)
    # One token comes with the first piece; the others make up the decoding rate of a stream.
    decode = statistics.median(
        (reply.completion_tokens - 1) / (reply.last_s - reply.first_s) for reply in replies
    )
    return {
        "output_tokens_per_s": total / wall,
        "decode_tokens_per_s_of_a_stream": decode,
        "ttft_s": statistics.median(reply.first_s for reply in replies),
        "output_tokens": float(total),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--url", help="a server that runs already, with its /v1")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    args, options = parser.parse_known_args()
    if "--speculate" not in options:
        options += ["--speculate", "off"]  # greedy replies to such prompts repeat themselves

    def rounds(url: str) -> None:
        asyncio.run(measure(url, 1, args.words, 16))  # warm up
        results: dict[int, list[dict[str, float]]] = {n: [] for n in args.streams}
        for _ in range(args.repeat):  # interleaved, since the machine's speed drifts
            for n in args.streams:
                results[n].append(asyncio.run(measure(url, n, args.words, args.tokens)))
        for n, found in results.items():
            medians: dict[str, Any] = {
                key: round(statistics.median(r[key] for r in found), 3) for key in found[0]
            }
            print(json.dumps({"streams": n, **medians}))

    if args.url:
        rounds(args.url)
    else:
        with server(args.model, options) as url:
            rounds(url)


if __name__ == "__main__":
    main()
