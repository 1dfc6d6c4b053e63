"""The same 20 replies of a real model under every condition that must not matter.

Threads 1, 2 and 3, steps of 1, 7 and 512 prompt tokens, alone and 8 at a time, on every kernel
table of this machine.  Prints one line for each condition and fails at the first difference.

    python benchmarks/same_bytes.py MODEL.gguf
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

from samovar import Engine, EngineOptions, Request, SamplingParams
from samovar._native import available

SUBJECTS = [
    "the sea",
    "bread",
    "winter",
    "a key",
    "the moon",
    "iron",
    "gardens",
    "rain",
    "clocks",
    "snow",
]
PROMPTS = [f"Write two sentences about {subject}." for subject in SUBJECTS]
PROMPTS += [f"def count_{i}(items):\n    # Count what occurs {i} times.\n" for i in range(6)]
PROMPTS += ["Ünïcödé 東京 😀 ", "1 2 3 4 5 6 7 8", "{", "A tale of a river and a stone. " * 80]


def requests(engine: Engine, num_tokens: int) -> list[Request]:
    samplings = [SamplingParams(), SamplingParams(temperature=0.9, top_k=50, seed=11)]
    return [
        Request(
            id=str(i),
            prompt=tuple(engine.tokenizer.encode(text, special=True)),
            sampling=samplings[i % 2],
            max_tokens=num_tokens,
            end_ids=engine.end_ids,
        )
        for i, text in enumerate(PROMPTS)
    ]


def digest(engine: Engine, wanted: list[Request], at_once: int) -> str:
    """Of all token ids and texts, in the order of the prompts."""
    tokens: dict[str, list[int]] = {request.id: [] for request in wanted}
    text = dict.fromkeys(tokens, "")
    for start in range(0, len(wanted), at_once):
        for request_id, delta in engine.generate(wanted[start : start + at_once]):
            tokens[request_id] += delta.tokens
            text[request_id] += delta.text
    return hashlib.sha256(repr([tokens, text]).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=24)
    args = parser.parse_args()
    expected = None
    for isa in available():
        # The portable kernels emulate what they lack: minutes for each condition.
        conditions = [(t, b, n) for t in (1, 2, 3) for b in (1, 7, 512) for n in (1, 8)]
        for threads, batch, at_once in conditions if isa != "portable" else [(2, 512, 8)]:
            options = EngineOptions(isa=isa, threads=threads, batch=batch, ctx=2048)
            engine = Engine.load(args.model, options)
            started = time.monotonic()
            found = digest(engine, requests(engine, args.tokens), at_once)
            expected = expected or found
            print(
                f"{found} {isa}: {threads} threads, steps of {batch}, {at_once} at a time, "
                f"{time.monotonic() - started:.1f} s",
                flush=True,
            )
            if found != expected:
                sys.exit("these replies differ")


if __name__ == "__main__":
    main()
