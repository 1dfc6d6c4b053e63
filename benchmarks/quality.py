"""Perplexity of our kernels and of plain float32, and how far their predictions are apart.

The text is the beginning of The Adventures of Tom Sawyer (public domain), cut into windows. The
comparison is the numpy reference of the tests on the dequantized weights, all in float32.

    python benchmarks/quality.py MODEL.gguf [--kv bf16] [--isa NAME]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samovar import _native as native
from samovar.checkpoint import open_checkpoint
from samovar.engine.blocks import BLOCK_TOKENS, blocks_for
from samovar.models import load_program
from samovar.models.registry import build_program
from samovar.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from reference import Reference  # noqa: E402

TEXT = ROOT / "benchmarks" / "data" / "tom-sawyer.txt"
ROWS = 128  # tokens of one native step, and the logits that are kept of it

Logits = NDArray[np.float32]


class NativeModel:
    """Logits at every position of a window, from the native core."""

    def __init__(self, path: Path, window: int, kv: str, isa: str | None) -> None:
        kernels, pool = native.Kernels(isa), native.Pool(native.usable_cores())
        program = load_program(
            open_checkpoint(path),
            kernels=kernels,
            pool=pool,
            arena=native.Arena(),
            max_tokens=ROWS,
            max_logit_rows=ROWS,
            max_sequences=1,
        )
        self._blocks = np.arange(blocks_for(window), dtype=np.int32)[None]
        cache = native.KvCache(
            layers=program.layers,
            kv_heads=program.kv_heads,
            head_dim=program.head_dim,
            num_blocks=self._blocks.size,
            dtype=kv,
        )
        self.isa = kernels.name
        self._runner = native.Runner(program.native, cache, kernels, pool)

    def logits(self, tokens: list[int]) -> Logits:
        parts = []
        for start in range(0, len(tokens), ROWS):
            end = min(start + ROWS, len(tokens))
            bad = self._runner.run(
                tokens=np.array(tokens[start:end], dtype=np.int32),
                positions=np.arange(start, end, dtype=np.int32),
                seq_start=np.array([0, end - start], dtype=np.int32),
                kv_len=np.array([end], dtype=np.int32),
                block_table=self._blocks,
                logit_rows=np.arange(end - start, dtype=np.int32),
            )
            assert not len(bad)
            parts.append(self._runner.logits[: end - start].copy())
        return np.concatenate(parts)


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv", default="bf16", choices=["bf16", "f32", "q8"])
    parser.add_argument("--isa")
    parser.add_argument("--window", type=int, default=16 * BLOCK_TOKENS)
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model)
    tokenizer = Tokenizer.build(checkpoint.tokenizer)
    tokens = tokenizer.encode(TEXT.read_text(), special=False, bos=False)
    model = NativeModel(args.model, args.window, args.kv, args.isa)
    reference = Reference(build_program(checkpoint))

    ours = theirs = kl = 0.0
    count = agreed = 0
    bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    step = args.window - len(bos)
    for start in range(0, len(tokens), step):
        window = bos + tokens[start : start + step]
        a, b = log_softmax(model.logits(window)), log_softmax(reference.run(window))
        rows, targets = np.arange(len(window) - 1), np.array(window[1:])
        ours -= a[rows, targets].sum()
        theirs -= b[rows, targets].sum()
        kl += (np.exp(b) * (b - a)).sum(axis=1)[:-1].sum()
        agreed += int((a.argmax(axis=1) == b.argmax(axis=1))[:-1].sum())
        count += len(rows)
        print(f"{start + len(window)} of {len(tokens)} tokens", file=sys.stderr)
    perplexity, exact = math.exp(ours / count), math.exp(theirs / count)
    print(
        json.dumps(
            {
                "model": args.model.name,
                "isa": model.isa,
                "kv": args.kv,
                "predictions": count,
                "perplexity": round(perplexity, 4),
                "perplexity_float32": round(exact, 4),
                "difference_percent": round(100 * (perplexity / exact - 1), 3),
                "mean_kl": round(kl / count, 5),
                "same_top_token_percent": round(100 * agreed / count, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
