"""Perplexity of our kernels and of plain float32, and how far their predictions are apart.

Two texts in the public domain, some 4,000 tokens each, are cut into windows: the beginning of The
Adventures of Tom Sawyer and the end of Newton's Opticks. The comparison is the numpy reference of
the tests on the dequantized weights, all in float32. One text alone says little: the differences
of single predictions spread so much that a mean over 4,000 of them is good to 0.15 % of perplexity.

    python benchmarks/quality.py MODEL.gguf [--kv bf16] [--isa NAME]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, field
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

DATA = ROOT / "benchmarks" / "data"
TEXTS = ("tom-sawyer.txt", "opticks.txt")
ROWS = 128  # tokens of one native step, and the logits that are kept of it

Logits = NDArray[np.float32]


class NativeModel:
    """Logits at every position of a window, from the native core."""

    def __init__(self, path: Path, window: int, kv: str, isa: str | None) -> None:
        kernels, pool = native.Kernels(isa), native.Pool(native.usable_cores())
        program = load_program(
            open_checkpoint(path),
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


@dataclass
class Score:
    """What two models say of the same predictions; log probabilities are in nats."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)

    def add(self, window: list[int], ours: Logits, theirs: Logits) -> None:
        a, b = log_softmax(ours), log_softmax(theirs)
        rows, targets = np.arange(len(window) - 1), np.array(window[1:])
        self.ours += a[rows, targets].tolist()
        self.theirs += b[rows, targets].tolist()
        self.kl += (np.exp(b) * (b - a)).sum(axis=1)[:-1].tolist()
        self.agreed += (a.argmax(axis=1) == b.argmax(axis=1))[:-1].tolist()

    def __add__(self, other: Score) -> Score:
        return Score(
            self.ours + other.ours,
            self.theirs + other.theirs,
            self.kl + other.kl,
            self.agreed + other.agreed,
        )

    def report(self) -> dict[str, float]:
        ours, theirs = (math.exp(-float(np.mean(x))) for x in (self.ours, self.theirs))
        return {
            "predictions": len(self.ours),
            "perplexity": round(ours, 4),
            "perplexity_float32": round(theirs, 4),
            "difference_percent": round(100 * (ours / theirs - 1), 3),
            "mean_kl": round(float(np.mean(self.kl)), 5),
            "median_kl": round(float(np.median(self.kl)), 5),
            "largest_kl": round(float(np.max(self.kl)), 2),
            "same_top_token_percent": round(100 * float(np.mean(self.agreed)), 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv", default="bf16", choices=["bf16", "f32", "q8"])
    parser.add_argument("--isa")
    parser.add_argument("--window", type=int, default=16 * BLOCK_TOKENS)
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model)
    tokenizer = Tokenizer.build(checkpoint.tokenizer)
    model = NativeModel(args.model, args.window, args.kv, args.isa)
    reference = Reference(build_program(checkpoint))
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    step = args.window - len(bos)
    scores: dict[str, Score] = {}
    for name in TEXTS:
        score = scores[name] = Score()
        tokens = tokenizer.encode((DATA / name).read_text(), special=False, bos=False)
        for start in range(0, len(tokens), step):
            window = bos + tokens[start : start + step]
            score.add(window, model.logits(window), reference.run(window))
            print(f"{name}: {start + len(window)} of {len(tokens)} tokens", file=sys.stderr)
    scores["both"] = scores[TEXTS[0]] + scores[TEXTS[1]]
    about = {"model": args.model.name, "isa": model.isa, "kv": args.kv, "window": args.window}
    for name, score in scores.items():
        print(json.dumps({**about, "text": name, **score.report()}))


if __name__ == "__main__":
    main()
