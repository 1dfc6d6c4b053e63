"""One measurement of Samovar's engine, in a process of its own as llama-bench is one.

    python samovar_worker.py MODEL.gguf '{"kind": "prefill", "prompt": 512, ...}'

Prints an object with the list of samples, in tokens a second, for each number of streams.  They are
those of `samovar bench`: all that the engine does for a step takes time, also scheduling, sampling
and making text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from samovar.engine.load import EngineOptions, load_model
from samovar.engine.measure import Decode, Prefill, Rounds


def main() -> None:
    path, work = Path(sys.argv[1]), json.loads(sys.argv[2])
    options = EngineOptions(threads=work["threads"])
    rounds = Rounds(load_model(path, options), options)
    is_prefill = work["kind"] == "prefill"
    rounds.seconds(Prefill(work["prompt"]) if is_prefill else Decode(0, 1, 1))  # warms up
    samples: dict[int, list[float]] = {}
    for streams in work["streams"]:
        case: Prefill | Decode = (
            Prefill(work["prompt"])
            if is_prefill
            else Decode(work["prompt"], streams, work["tokens"])
        )
        rates = [case.num_tokens / rounds.seconds(case) for _ in range(work["repeat"])]
        samples[streams] = rates
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
