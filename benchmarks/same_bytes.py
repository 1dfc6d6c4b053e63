"""The same replies of a real model under every condition that must not matter.

Threads 1, 2 and 3, steps of 1, 7 and 512 prompt tokens, alone, 8 at a time and among 32 others,
from an empty and a warm cache and from the disk, with drafts, and with so few blocks that replies
give way to each other: on every kernel table of this machine.  Prints one line for each condition
and fails at the first difference in a token, a text or a log probability.

    python benchmarks/same_bytes.py MODEL.gguf
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from samovar import Engine, EngineOptions, Request, SamplingParams
from samovar._native import available
from samovar.engine.load import load_model

CTX = 1024
FEW_BLOCKS = CTX // 32  # one whole context
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
NUM_OTHERS = 32


@dataclass(frozen=True)
class Condition:
    """How the replies are computed.

    at_once: requests that run together.  others: further ones that run beside them all.
    cache: a directory of cached blocks.  few_blocks: too few for all at once.
    """

    isa: str
    threads: int = 2
    batch: int = 256
    at_once: int = 8
    others: int = 0
    speculate: str = "off"
    cache: Path | None = None
    few_blocks: bool = False

    def __str__(self) -> str:
        parts = [f"{self.isa}: {self.threads} threads", f"steps of {self.batch}"]
        parts += [f"{self.at_once} at a time"]
        parts += [f"among {self.others} others"] * bool(self.others)
        parts += [f"speculation {self.speculate}"] * (self.speculate != "off")
        parts += ["with a disk"] * (self.cache is not None)
        parts += ["few blocks"] * self.few_blocks
        return ", ".join(parts)

    def engine(self, path: Path) -> Engine:
        """An engine of its own."""
        options = EngineOptions(
            isa=self.isa,
            threads=self.threads,
            batch=self.batch,
            ctx=CTX,
            speculate=self.speculate,
            cache_dir=None if self.cache is None else str(self.cache),
            max_sequences=NUM_OTHERS + len(PROMPTS),
        )
        model = load_model(path, options)
        if self.few_blocks:
            model = replace(model, num_blocks=FEW_BLOCKS)
        return Engine(model, options)


def conditions(cache: Path) -> Iterator[Condition]:
    """All of them; the portable kernels emulate what they lack and get few."""
    for isa in available():
        if isa != "portable":
            for threads in (1, 2, 3):
                for batch in (1, 7, 512):
                    yield Condition(isa, threads, batch)
            yield Condition(isa, at_once=1)
            yield Condition(isa, at_once=len(PROMPTS), others=NUM_OTHERS)
            yield Condition(isa, at_once=1, speculate="ngram")
            yield Condition(isa, at_once=len(PROMPTS), few_blocks=True)
        # Each table goes on from what the ones before it have written.
        yield Condition(isa, batch=512, cache=cache)


def requests(engine: Engine, num_tokens: int) -> list[Request]:
    samplings = [SamplingParams(), SamplingParams(temperature=0.9, top_k=50, seed=11)]
    return [
        Request(
            id=str(i),
            prompt=tuple(engine.tokenizer.encode(text, special=True)),
            sampling=samplings[i % 2],
            max_tokens=num_tokens,
            end_ids=frozenset() if i % 4 else engine.end_ids,  # some would end at once
            n=1 + (i % 5 == 4),
            logprobs=(None, 0, 5)[i % 3],
        )
        for i, text in enumerate(PROMPTS)
    ]


def digest(engine: Engine, wanted: list[Request], at_once: int, num_others: int) -> str:
    """Of all token ids, texts and log probabilities, in the order of the prompts."""
    others = [
        replace(wanted[i % len(wanted)], id=f"other {i}", max_tokens=10 + i)
        for i in range(num_others)
    ]
    told: dict[tuple[str, int], list[object]] = {}
    for start in range(0, len(wanted), at_once):
        batch = wanted[start : start + at_once]
        for request_id, delta in engine.generate([*others, *batch]):
            told.setdefault((request_id, delta.choice), []).append(
                (delta.text, delta.tokens, delta.logprobs, delta.finish_reason)
            )
    kept = [told[case.id, choice] for case in wanted for choice in range(case.n)]
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    expected = None
    with tempfile.TemporaryDirectory() as cache:
        for condition in conditions(Path(cache)):
            engine = condition.engine(args.model)
            wanted = requests(engine, args.tokens)
            for temperature in ("cold", "warm") if condition.cache else ("cold",):
                started = time.monotonic()
                found = digest(engine, wanted, condition.at_once, condition.others)
                expected = expected or found
                stats = engine.stats()
                print(
                    f"{found} {condition}, {temperature}: {stats.preemptions} gave way, "
                    f"{stats.tokens_computed} tokens computed, {time.monotonic() - started:.1f} s",
                    flush=True,
                )
                if found != expected:
                    sys.exit("these replies differ")
                if condition.few_blocks and not stats.preemptions:
                    sys.exit("no reply gave way: more --tokens would make them")
            engine.close()


if __name__ == "__main__":
    main()
