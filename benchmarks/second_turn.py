"""How soon the second turn of a chat starts, compared with the first.

The first turn has a history of some 2,000 tokens; the second adds its reply and a new question.
The second turn is asked again of a server that has just started: its reply must be the same.

    python benchmarks/second_turn.py smollm2 --repeat 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from client import events, server

TEXT = (Path(__file__).parent / "data" / "tom-sawyer.txt").read_text()
REPLY_TOKENS = 40

Message = dict[str, str]


def history(index: int, num_chars: int) -> list[Message]:
    begin = 1000 * index
    text = TEXT[begin : begin + num_chars]
    return [
        {"role": "system", "content": f"You know this text:\n{text}"},
        {"role": "user", "content": "Who is in it?"},
    ]


async def turn(url: str, messages: list[Message]) -> tuple[float, str, dict[str, Any]]:
    """Seconds to the first token, the whole reply, and the usage."""
    body = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": REPLY_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first: float | None = None
    text: list[str] = []
    usage: dict[str, Any] = {}
    for at, data in await events(url, "/chat/completions", body):
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                first = first or at
                text.append(piece)
    assert first is not None
    return first - started, "".join(text), usage


async def two_turns(url: str, messages: list[Message]) -> dict[str, Any]:
    first_s, reply, first_usage = await turn(url, messages)
    more = [
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "And what do they want?"},
    ]
    second = [*messages, *more]
    second_s, answer, usage = await turn(url, second)
    return {
        "messages": second,
        "answer": answer,
        "prompt_tokens": (first_usage["prompt_tokens"], usage["prompt_tokens"]),
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "ttft_s": (first_s, second_s),
        "ratio": second_s / first_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--chars", type=int, default=8600)
    parser.add_argument("--repeat", type=int, default=5)
    args, options = parser.parse_known_args()
    results = []
    with server(args.model, options) as url:
        asyncio.run(turn(url, [{"role": "user", "content": "Hello"}]))  # warm up
        for index in range(args.repeat):
            results.append(asyncio.run(two_turns(url, history(index, args.chars))))
    same = 0
    for found in results:
        with server(args.model, options) as url:
            _, answer, usage = asyncio.run(turn(url, found["messages"]))
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        same += answer == found["answer"]
    for found in results:
        first_s, second_s = found["ttft_s"]
        print(
            f"{found['prompt_tokens'][0]} tokens: {1000 * first_s:.0f} ms; then"
            f" {found['prompt_tokens'][1]}, {found['cached_tokens']} of them cached:"
            f" {1000 * second_s:.1f} ms = {100 * found['ratio']:.1f} %"
        )
    print(f"median {100 * statistics.median(found['ratio'] for found in results):.1f} %;", end=" ")
    print(f"{same} of {len(results)} replies as from a cold server")


if __name__ == "__main__":
    main()
