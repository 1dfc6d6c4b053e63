"""What prompt lookup gains, on the prompts of data/lookup.json.

Each reply is made with drafts and without by turns, by two engines in one process; the tokens must
be the same.  A small model that falls into a loop flatters drafts, so runs of 20 tokens that the
reply repeats and that the prompt does not hold are counted: there should be none.

    python benchmarks/prompt_lookup.py smollm2 --repeat 9
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from samovar import Engine, EngineOptions, Request, SamplingParams, hub
from samovar.engine.request import Usage

PROMPTS = Path(__file__).parent / "data" / "lookup.json"
MAX_TOKENS = 400
LOOP_TOKENS = 20


def reply(engine: Engine, request: Request) -> tuple[list[int], Usage]:
    tokens: list[int] = []
    usage = None
    for _, delta in engine.generate([request]):
        tokens += delta.tokens
        usage = delta.usage
    assert usage is not None
    return tokens, usage


def rate(usage: Usage) -> float:
    """Tokens a second from the first token of the reply to its last."""
    assert usage.decode_s
    return (usage.completion_tokens - 1) / usage.decode_s


def loops(prompt: tuple[int, ...], tokens: list[int]) -> int:
    """Runs of LOOP_TOKENS tokens that occur again and are not the prompt's."""
    runs = [tuple(tokens[i : i + LOOP_TOKENS]) for i in range(len(tokens) - LOOP_TOKENS + 1)]
    own = {prompt[i : i + LOOP_TOKENS] for i in range(len(prompt) - LOOP_TOKENS + 1)}
    return sum(run in runs[:i] for i, run in enumerate(runs) if run not in own)


def compare(engines: dict[str, Engine], case: dict[str, Any], repeat: int) -> dict[str, Any]:
    first = next(iter(engines.values()))
    assert first.template is not None
    prompt = tuple(first.template.encode([{"role": "user", "content": case["prompt"]}]))
    request = Request(
        id="reply",
        prompt=prompt,
        sampling=SamplingParams(temperature=case["temperature"], seed=7),
        max_tokens=MAX_TOKENS,
        end_ids=first.end_ids,
    )
    rates: dict[str, list[float]] = {mode: [] for mode in engines}
    expected, usage = reply(first, request)
    for _ in range(repeat):
        for mode, engine in engines.items():
            tokens, usage = reply(engine, request)
            assert tokens == expected, "drafts changed the reply"
            rates[mode].append(rate(usage))
    ratios = [fast / plain for plain, fast in zip(*rates.values(), strict=True)]
    return {
        "reply_tokens": len(expected),
        "accepted": usage.accepted_draft_tokens,
        "rejected": usage.rejected_draft_tokens,
        "loops": loops(prompt, expected),
        "plain_tok_s": statistics.median(rates["off"]),
        "drafting_tok_s": statistics.median(rates["auto"]),
        "ratios": sorted(ratios),
        "ratio": statistics.median(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path = hub.resolve(args.model).path
    engines = {mode: Engine.load(path, EngineOptions(speculate=mode)) for mode in ("off", "auto")}
    results = {
        name: compare(engines, case, args.repeat)
        for name, case in json.loads(PROMPTS.read_text()).items()
    }
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for name, found in results.items():
        low, high = found["ratios"][0], found["ratios"][-1]
        print(
            f"{name}: {found['plain_tok_s']:.0f} -> {found['drafting_tok_s']:.0f} tok/s,"
            f" ratio {found['ratio']:.2f} ({low:.2f} to {high:.2f});"
            f" {found['reply_tokens']} tokens, drafts right {found['accepted']},"
            f" wrong {found['rejected']}; loops {found['loops']}"
        )
    copying = list(results.values())[:-1]
    print(f"median of the copying ones: {statistics.median(f['ratio'] for f in copying):.2f}")


if __name__ == "__main__":
    main()
