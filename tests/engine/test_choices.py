"""Several replies to one prompt: each as if it were alone, the prompt read once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_cases import MODEL_PATHS, load
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import BLOCK_TOKENS, blocks_for
from samovar.errors import RequestError

NUM_CTX = 256


@pytest.fixture
def engine() -> Engine:
    return load(MODEL_PATHS[0], ctx=NUM_CTX)


def request(num_prompt: int, **changes: object) -> Request:
    base = Request(
        id="r",
        prompt=tuple(30 + i % 200 for i in range(num_prompt)),
        sampling=SamplingParams(temperature=1.0, top_p=1.0, seed=5),
        max_tokens=20,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def choices(engine: Engine, wanted: Request) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for _, delta in engine.generate([wanted]):
        found.setdefault(delta.choice, []).extend(delta.tokens)
    engine.check_blocks()
    assert engine.stats().blocks_used == 0
    return found


@pytest.mark.parametrize("num_prompt", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 100])
def test_a_choice_does_not_depend_on_how_many_there_are(engine: Engine, num_prompt: int) -> None:
    many = choices(engine, request(num_prompt, n=5))
    assert sorted(many) == [0, 1, 2, 3, 4]
    assert len({tuple(tokens) for tokens in many.values()}) == 5
    fresh = load(MODEL_PATHS[0], ctx=NUM_CTX)
    assert choices(fresh, request(num_prompt, n=2)) == {i: many[i] for i in (0, 1)}
    assert choices(fresh, request(num_prompt)) == {0: many[0]}


def test_the_prompt_is_read_once(engine: Engine) -> None:
    choices(engine, request(100, n=6))
    # Each choice computes its own tokens but for the last one, which nothing follows.
    assert engine.stats().tokens_computed == 100 + 6 * 19


def test_more_choices_than_places_and_few_blocks() -> None:
    expected = choices(load(MODEL_PATHS[0], ctx=NUM_CTX), request(70, n=9, max_tokens=40))
    cramped = load(MODEL_PATHS[0], ctx=NUM_CTX, max_sequences=4, num_blocks=blocks_for(NUM_CTX) + 2)
    assert choices(cramped, request(70, n=9, max_tokens=40)) == expected


def test_choices_that_end_at_once(engine: Engine) -> None:
    found = choices(engine, request(40, n=3, max_tokens=1))
    assert {len(tokens) for tokens in found.values()} == {1}


def test_an_abort_drops_all_choices(engine: Engine) -> None:
    engine.submit(request(40, n=4, max_tokens=0))
    for _ in range(6):
        engine.step()
    engine.abort("r")
    engine.check_blocks()
    assert engine.stats().running == engine.stats().waiting == engine.stats().blocks_used == 0


@pytest.mark.parametrize("n", [0, -1, 129])
def test_bad_counts_are_refused(n: int) -> None:
    with pytest.raises(RequestError, match="n is"):
        request(3, n=n)
