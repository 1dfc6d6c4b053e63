"""One measurement of Samovar's engine, in a process of its own as llama-bench is one.

    python samovar_worker.py MODEL.gguf '{"kind": "prefill", "prompt": 512, ...}'

Prints an object with the list of samples, in tokens a second, for each number of streams.  The
time of a sample includes all that the engine does for a step: scheduling, sampling, text.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from samovar.engine.engine import Engine
from samovar.engine.load import EngineOptions
from samovar.engine.request import Request, SamplingParams


def main() -> None:
    path, work = Path(sys.argv[1]), json.loads(sys.argv[2])
    engine = Engine.load(path, EngineOptions(threads=work["threads"], speculate="off"))
    print(
        json.dumps({str(count): samples(engine, work, count) for count in work["streams"]}),
        flush=True,
    )


def samples(engine: Engine, work: dict[str, Any], num_streams: int) -> list[float]:
    """Tokens a second of all streams together, once for each repetition."""
    is_prefill = work["kind"] == "prefill"
    num_prompt, num_tokens = max(work["prompt"], 1), work["tokens"]
    if work["warm"]:
        token_times(engine, num_prompt if is_prefill else 1, 2, num_streams)
    rates = []
    for _ in range(work["repeat"]):
        started = time.perf_counter()
        times = token_times(engine, num_prompt, 1 if is_prefill else num_tokens + 1, num_streams)
        if is_prefill:
            rates.append(num_prompt / (times[0][0] - started))
        else:
            # From the moment at which every stream has its first token, when nobody reads a
            # prompt any more.
            start = max(each[0] for each in times)
            end = max(each[-1] for each in times)
            count = sum(sum(moment > start for moment in each) for each in times)
            rates.append(count / (end - start))
    return rates


def token_times(
    engine: Engine, num_prompt: int, num_tokens: int, num_streams: int
) -> list[list[float]]:
    """The moment of each token of each stream; every prompt is a new one, no cache can help."""
    numbers = random.Random()
    vocab_size = engine.tokenizer.vocab_size
    requests = [
        Request(
            id=str(stream),
            prompt=tuple(numbers.randrange(vocab_size) for _ in range(num_prompt)),
            sampling=SamplingParams(),
            max_tokens=num_tokens,
        )
        for stream in range(num_streams)
    ]
    times: list[list[float]] = [[] for _ in requests]
    for stream, delta in engine.generate(requests):
        if delta.error is not None:
            sys.exit(delta.error)
        times[int(stream)] += [time.perf_counter()] * len(delta.tokens)
    return times


if __name__ == "__main__":
    main()
