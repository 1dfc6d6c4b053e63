"""Small real models and requests that tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from samovar import Delta, Engine, EngineOptions, Request, SamplingParams
from samovar.engine.load import load_model
from samovar.engine.request import TokenLogprob

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = [
    "a",
    "Once upon a time",
    "def main():\n    return 1\n" * 3,
    "The quick brown fox jumps over the lazy dog. " * 4,
    "naïve café, 東京, Москва, नमस्ते, \U0001f469\u200d\U0001f680",
    "0123456789" * 12,
]

MODEL_PATHS = [GOLDEN / "llama.gguf", GOLDEN / "gemma3.gguf"]


def requests(
    engine: Engine, prompts: Iterable[str] = PROMPTS, *, max_tokens: int = 24
) -> list[Request]:
    """One request for each prompt: greedy, drawn, penalised and filtered by turns."""
    samplings = [
        SamplingParams(),
        SamplingParams(temperature=1.0, top_p=1.0, seed=1),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=2),
        SamplingParams(
            temperature=1.2, repeat_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3, seed=3
        ),
    ]
    return [
        Request(
            id=str(i),
            prompt=tuple(engine.tokenizer.encode(text, special=True)),
            sampling=samplings[i % len(samplings)],
            max_tokens=max_tokens,
            end_ids=engine.end_ids,
        )
        for i, text in enumerate(prompts)
    ]


def replies(engine: Engine, wanted: Iterable[Request]) -> dict[str, tuple[list[int], str, str]]:
    """Token ids, text and finish reason of each request, all run together."""
    tokens: dict[str, list[int]] = {}
    text: dict[str, str] = {}
    reason: dict[str, str] = {}
    for request_id, delta in engine.generate(wanted):
        assert delta.error is None
        tokens.setdefault(request_id, []).extend(delta.tokens)
        text[request_id] = text.get(request_id, "") + delta.text
        if delta.finish_reason:
            reason[request_id] = delta.finish_reason
    engine.check_blocks()
    assert engine.stats().blocks_used == 0
    return {key: (tokens[key], text[key], reason[key]) for key in tokens}


def alone(engine: Engine, wanted: Iterable[Request]) -> dict[str, tuple[list[int], str, str]]:
    """As `replies`, but one request after the other."""
    found: dict[str, tuple[list[int], str, str]] = {}
    for request in wanted:
        found |= replies(engine, [request])
    return found


@dataclass
class Reply:
    """All that the deltas of one choice told."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        assert delta.error is None
        assert self.finish_reason is None
        self.tokens += delta.tokens
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason


def whole_replies(engine: Engine, wanted: Iterable[Request]) -> dict[str, list[Reply]]:
    """All choices of each request, all run together."""
    wanted = list(wanted)
    found = {request.id: [Reply() for _ in range(request.n)] for request in wanted}
    for request_id, delta in engine.generate(wanted):
        found[request_id][delta.choice].add(delta)
    engine.check_blocks()
    assert engine.stats().blocks_used == 0
    return found


def load(path: Path, *, num_blocks: int | None = None, **options: object) -> Engine:
    """An engine of a small model; `num_blocks` makes its cache smaller than planned."""
    chosen = EngineOptions(**options)  # type: ignore[arg-type]
    model = load_model(path, chosen)
    return Engine(replace(model, num_blocks=num_blocks or model.num_blocks), chosen)
