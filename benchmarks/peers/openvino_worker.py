"""Measurements of OpenVINO GenAI, in the environment that it has to itself.

    python openvino_worker.py MODEL.gguf THREADS

First prints an object with its version, or with the error if it cannot load the file; then answers
each line of its input, a work as an object, with the samples of each number of streams.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

SMALLEST_ID, LARGEST_ID = 16, 49000  # text in every vocabulary of the table


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    try:
        # Its own default would be 8 bits; every contender of the table has 16.
        pipeline = openvino_genai.LLMPipeline(
            path, "CPU", INFERENCE_NUM_THREADS=threads, KV_CACHE_PRECISION="f16"
        )
    except Exception as error:  # of whatever type: the report names it
        print(json.dumps({"error": str(error)[-600:]}), flush=True)
        return
    print(json.dumps({"version": openvino_genai.__version__}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps({n: samples(pipeline, work, n) for n in work["streams"]}), flush=True)


def samples(pipeline: Any, work: dict[str, Any], num_streams: int) -> list[list[float]]:
    """[tokens a second, seconds to the first token] of each repetition."""
    is_prefill = work["kind"] == "prefill"
    num_prompt, num_tokens = max(work["prompt"], 1), work["tokens"]
    generate(pipeline, num_prompt if is_prefill else 16, 2, num_streams)  # warms up
    found = []
    for _ in range(work["repeat"]):
        started = time.perf_counter()
        more = 0 if work["kind"] == "http" else 1  # the first token is none of the counted ones
        metrics = generate(pipeline, num_prompt, num_tokens + more, num_streams)
        wall = time.perf_counter() - started
        first = metrics.get_ttft().mean / 1000
        if is_prefill:
            rate = num_prompt / first
        elif work["kind"] == "http":
            rate = num_streams * num_tokens / wall
        else:
            rate = 1000 / metrics.get_tpot().mean
        found.append([rate, first])
    return found


def generate(pipeline: Any, num_prompt: int, num_tokens: int, num_streams: int) -> Any:
    """Runs new random prompts together and returns the pipeline's own measurements."""
    numbers = random.Random()
    ids = np.array(
        [
            [numbers.randrange(SMALLEST_ID, LARGEST_ID) for _ in range(num_prompt)]
            for _ in range(num_streams)
        ],
        np.int64,
    )
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    mask = openvino.Tensor(np.ones_like(ids))
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), mask)
    return pipeline.generate(inputs, config).perf_metrics


if __name__ == "__main__":
    main()
