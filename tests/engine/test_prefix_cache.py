"""What two prompts have in common is computed once, and a hit never changes a reply."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_cases import MODEL_PATHS, load, replies
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import BLOCK_TOKENS, blocks_for

NUM_CTX = 256
LONG = tuple(range(40, 240))  # six whole blocks and a part


@pytest.fixture
def engine() -> Engine:
    return load(MODEL_PATHS[0], ctx=NUM_CTX)


def request(prompt: tuple[int, ...], **changes: object) -> Request:
    base = Request(id="r", prompt=prompt, sampling=SamplingParams(), max_tokens=8)
    return replace(base, **changes)  # type: ignore[arg-type]


def cached_tokens(engine: Engine, wanted: Request) -> int:
    *_, (_, delta) = engine.generate([wanted])
    engine.check_blocks()
    return delta.usage.cached_tokens


def test_a_prompt_seen_before_is_found_but_for_its_last_token(engine: Engine) -> None:
    assert cached_tokens(engine, request(LONG)) == 0
    assert cached_tokens(engine, request(LONG)) == len(LONG) - 1


def test_the_next_turn_finds_the_reply_too(engine: Engine) -> None:
    tokens, _, _ = replies(engine, [request(LONG, max_tokens=20)])["r"]
    turn = (*LONG, *tokens, 50, 51, 52)
    # The last token of a reply is never computed: nothing came after it.
    assert cached_tokens(engine, request(turn)) == len(LONG) + len(tokens) - 1


def test_a_prompt_that_departs_within_a_block_finds_the_part_before(engine: Engine) -> None:
    cached_tokens(engine, request(LONG))
    departing = (*LONG[: BLOCK_TOKENS + 5], 7, *LONG[:BLOCK_TOKENS])
    assert cached_tokens(engine, request(departing)) == BLOCK_TOKENS + 5


def test_an_owner_finds_blocks_of_its_own_only(engine: Engine) -> None:
    cached_tokens(engine, request(LONG, owner="a"))
    assert cached_tokens(engine, request(LONG, owner="b")) == 0
    assert cached_tokens(engine, request(LONG, owner="a")) == len(LONG) - 1


def test_a_prompt_in_flight_twice_is_computed_once(engine: Engine) -> None:
    alone = replies(engine, [request(LONG)])["r"]
    fresh = load(MODEL_PATHS[0], ctx=NUM_CTX)
    found = replies(fresh, [request(LONG, id="a"), request(LONG, id="b")])
    assert found == {"a": alone, "b": alone}
    whole_blocks = len(LONG) // BLOCK_TOKENS * BLOCK_TOKENS
    assert fresh.stats().tokens_computed == 2 * (len(LONG) + 7) - whole_blocks


def test_the_second_takes_over_when_the_first_is_aborted(engine: Engine) -> None:
    slow = load(MODEL_PATHS[0], ctx=NUM_CTX, batch=8)
    slow.submit(request(LONG, id="first"))
    slow.submit(request(LONG, id="second"))
    for _ in range(6):
        slow.step()
    slow.abort("first")
    tokens: list[int] = []
    while len(tokens) < 8:
        for request_id, delta in slow.step() or []:
            assert request_id == "second"
            tokens += delta.tokens
    assert tokens == replies(engine, [request(LONG)])["r"][0]
    slow.check_blocks()
    assert slow.stats().tokens_computed < len(LONG) + 8 + BLOCK_TOKENS


def test_the_least_recently_used_leaves_first(engine: Engine) -> None:
    small = load(MODEL_PATHS[0], ctx=NUM_CTX, num_blocks=2 * blocks_for(len(LONG) + 9))
    prompts = [(i, *LONG) for i in range(3)]
    cached_tokens(small, request(prompts[0]))
    cached_tokens(small, request(prompts[1]))
    cached_tokens(small, request(prompts[0]))  # used again: now the other one is the older
    cached_tokens(small, request(prompts[2]))
    assert cached_tokens(small, request(prompts[0])) > cached_tokens(small, request(prompts[1]))


@dataclass(frozen=True)
class Arrival:
    pieces: tuple[int, ...]
    cut: int
    gap: int
    lifetime: int | None
    seed: int


# Prompts are made of few pieces of odd lengths and cut anywhere: they share prefixes of every kind.
PIECES = [tuple(range(30, 30 + 45)), tuple(range(90, 90 + 32)), (7,) * 20, (8, 9) * 13]
arrivals = st.lists(
    st.builds(
        Arrival,
        pieces=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=4).map(tuple),
        cut=st.integers(0, 40),
        gap=st.integers(0, 5),
        lifetime=st.none() | st.integers(0, 30),
        seed=st.integers(0, 3),
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture(scope="module")
def engines() -> dict[str, Engine]:
    """One that computes each request alone and forgets, and crowded ones that keep their caches."""
    return {
        "judge": load(MODEL_PATHS[0], ctx=NUM_CTX),
        "roomy": load(MODEL_PATHS[0], ctx=NUM_CTX, batch=64),
        # One context and a little: nearly every step something is evicted or gives way.
        "cramped": load(MODEL_PATHS[0], ctx=NUM_CTX, batch=19, num_blocks=blocks_for(NUM_CTX) + 3),
    }


@given(arrivals=arrivals, which=st.sampled_from(["roomy", "cramped"]))
@settings(max_examples=100)
def test_random_mixes_reply_as_alone_from_an_empty_cache(
    engines: dict[str, Engine], arrivals: list[Arrival], which: str
) -> None:
    engine = engines[which]
    wanted: list[Request] = []
    due: list[int] = []
    for arrival in arrivals:
        prompt = sum((PIECES[i] for i in arrival.pieces), ())
        prompt = prompt[: max(1, len(prompt) - arrival.cut)]
        sampling = SamplingParams(temperature=0.9, top_p=1.0, seed=arrival.seed)
        wanted.append(request(prompt, id=str(len(wanted)), sampling=sampling, max_tokens=24))
        due.append(arrival.gap + (due[-1] if due else 0))
    found: dict[str, list[int]] = {r.id: [] for r in wanted}
    live: set[str] = set()
    step = 0
    while step <= due[-1] or live:
        for r, at_step in zip(wanted, due, strict=True):
            if at_step == step:
                engine.submit(r)
                live.add(r.id)
        for request_id, delta in engine.step() or []:
            found[request_id] += delta.tokens
            if delta.finish_reason:
                live.discard(request_id)
        for r, at_step, arrival in zip(wanted, due, arrivals, strict=True):
            if arrival.lifetime is not None and at_step + arrival.lifetime == step and r.id in live:
                engine.abort(r.id)
                live.discard(r.id)
        step += 1
    engine.check_blocks()
    assert engine.stats().blocks_used == 0
    for r, arrival in zip(wanted, arrivals, strict=True):
        engines["judge"].forget()
        whole = replies(engines["judge"], [r])[r.id][0]
        tokens = found[r.id]
        assert tokens == (whole if arrival.lifetime is None else whole[: len(tokens)])
