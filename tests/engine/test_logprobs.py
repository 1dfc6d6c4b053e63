"""Log probabilities: the model's own, for replies and prompts, however they were computed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_cases import MODEL_PATHS, load
from reference import Reference
from samovar import Engine, Request, SamplingParams
from samovar.checkpoint import open_checkpoint
from samovar.engine.blocks import blocks_for
from samovar.engine.request import Delta, TokenLogprob
from samovar.errors import ContextOverflow, RequestError
from samovar.models.registry import build_program

NUM_CTX = 256
PROMPT = tuple(30 + i * 7 % 200 for i in range(90))


@pytest.fixture
def engine() -> Engine:
    return load(MODEL_PATHS[0], ctx=NUM_CTX, kv="f32")


def request(**changes: object) -> Request:
    base = Request(id="r", prompt=PROMPT, sampling=SamplingParams(), max_tokens=12)
    return replace(base, **changes)  # type: ignore[arg-type]


def run(engine: Engine, *wanted: Request) -> dict[str, list[Delta]]:
    found: dict[str, list[Delta]] = {}
    for request_id, delta in engine.generate(wanted):
        found.setdefault(request_id, []).append(delta)
    engine.check_blocks()
    return found


def reply_logprobs(deltas: list[Delta]) -> list[TokenLogprob]:
    return [logprob for delta in deltas for logprob in delta.logprobs]


def reference_logprobs(path: Path, tokens: list[int]) -> np.ndarray:
    logits = Reference(build_program(open_checkpoint(path)), dtype=np.float64).run(tokens)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def test_reply_and_prompt_agree_with_the_reference(engine: Engine) -> None:
    deltas = run(engine, request(logprobs=5, prompt_logprobs=3))["r"]
    tokens = [*PROMPT, *(token for delta in deltas for token in delta.tokens)]
    expected = reference_logprobs(MODEL_PATHS[0], tokens)
    found = [*deltas[0].prompt_logprobs, *reply_logprobs(deltas)]
    assert [each.token for each in found] == tokens[1:]
    for position, each in enumerate(found):
        row = expected[position]
        assert each.logprob == pytest.approx(row[each.token], abs=2e-3)
        assert len(each.top) == (3 if position < len(PROMPT) - 1 else 5)
        assert [token for token, _ in each.top[:1]] == [int(row.argmax())]
        values = [value for _, value in each.top]
        assert values == sorted(values, reverse=True)


def test_they_are_taken_before_any_sampling_filter(engine: Engine) -> None:
    plain = reply_logprobs(run(engine, request(logprobs=2))["r"])
    filtered = SamplingParams(
        temperature=0.3, top_k=1, top_p=0.1, logit_bias=((plain[0].token, 5.0),), seed=4
    )
    first = reply_logprobs(run(engine, request(logprobs=2, sampling=filtered))["r"])[0]
    assert first == plain[0]


def test_the_same_bits_with_cache_choices_drafts_and_few_blocks(engine: Engine) -> None:
    long = request(logprobs=4, prompt_logprobs=4, max_tokens=60, n=3)
    expected = run(engine, long)["r"]
    expected_prompt = expected[0].prompt_logprobs
    others = [
        run(engine, long)["r"],  # from a warm cache
        run(load(MODEL_PATHS[0], ctx=NUM_CTX, kv="f32", speculate="off", batch=5), long)["r"],
        run(load(MODEL_PATHS[0], ctx=NUM_CTX, kv="f32", num_blocks=blocks_for(NUM_CTX)), long)["r"],
    ]
    for found in others:
        assert found[0].prompt_logprobs == expected_prompt
        for choice in range(3):
            ours, theirs = (
                reply_logprobs([d for d in deltas if d.choice == choice])
                for deltas in (found, expected)
            )
            assert ours == theirs


def test_a_prompt_alone_can_be_scored(engine: Engine) -> None:
    (delta,) = run(engine, request(prompt_logprobs=0, prompt_only=True))["r"]
    assert (delta.text, delta.tokens, delta.finish_reason) == ("", (), "length")
    assert [each.token for each in delta.prompt_logprobs] == list(PROMPT[1:])
    assert delta.usage.completion_tokens == 0
    assert engine.stats().running == 0


def test_a_scored_prompt_leaves_its_blocks_to_others(engine: Engine) -> None:
    run(engine, request(prompt_logprobs=1, prompt_only=True))
    (*_, last) = run(engine, request())["r"]
    assert last.usage.cached_tokens == len(PROMPT) - 1


def test_bias_makes_and_forbids_tokens(engine: Engine) -> None:
    forced = SamplingParams(logit_bias=((77, 100.0),))
    tokens = [t for d in run(engine, request(sampling=forced))["r"] for t in d.tokens]
    assert tokens == [77] * 12
    plain = [t for d in run(engine, request())["r"] for t in d.tokens]
    forbidden = SamplingParams(logit_bias=tuple((t, -100.0) for t in set(plain)))
    found = [t for d in run(engine, request(sampling=forbidden))["r"] for t in d.tokens]
    assert not set(found) & set(plain)


@pytest.mark.parametrize("value", [math.nan, math.inf, 100.5, -101.0])
def test_bad_biases_are_refused(value: float) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingParams(logit_bias=((1, value),))


def test_a_prompt_that_fills_the_context_can_be_scored(engine: Engine) -> None:
    full = tuple(30 + i % 7 * 11 for i in range(NUM_CTX))
    scored = request(prompt=full, prompt_logprobs=0, prompt_only=True)
    (delta,) = run(engine, scored)["r"]
    assert (len(delta.prompt_logprobs), delta.error) == (NUM_CTX - 1, None)
    for wrong in (replace(scored, prompt=(*full, 3)), request(prompt=full)):
        with pytest.raises(ContextOverflow):
            engine.check(wrong)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_than_the_vocabulary_has_is_refused(engine: Engine, field: str) -> None:
    engine.tokenizer.vocab_size = 12  # as of a model with few tokens
    few = tuple(i % 12 for i in range(9))
    engine.check(request(prompt=few, **{field: 12}))
    with pytest.raises(RequestError, match="more than the 12 tokens of this model") as info:
        engine.submit(request(prompt=few, **{field: 13}))
    assert info.value.param == "logprobs"
    assert engine.is_idle
