"""A reply depends on the request and the model alone: not a bit changes with how it is computed."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_cases import MODEL_PATHS, PROMPTS, alone, load, replies, requests
from samovar import Engine
from samovar._native import available
from samovar.engine.blocks import blocks_for

paths = pytest.mark.parametrize("path", MODEL_PATHS, ids=lambda path: path.stem)
kinds = pytest.mark.parametrize("kv", ["bf16", "f32", "q8"])


@paths
@kinds
def test_alone_and_together(path: Path, kv: str) -> None:
    engine = load(path, kv=kv)
    wanted = requests(engine)
    assert alone(engine, wanted) == replies(engine, wanted)


@paths
@kinds
def test_threads_chunks_and_instruction_sets(path: Path, kv: str) -> None:
    baseline = None
    for isa, threads, batch in product(available(), [1, 2, 3], [1, 7, 512]):
        engine = load(path, kv=kv, isa=isa, threads=threads, batch=batch)
        found = replies(engine, requests(engine, max_tokens=8))
        baseline = baseline or found
        assert found == baseline, (isa, threads, batch)


def test_a_real_model_beyond_one_chunk_of_attention(smollm2_path: Path) -> None:
    prompts = ["Hi", "def add(a, b):\n    return", "A tale of a river and a stone. " * 70]
    baseline = None
    # The portable kernels emulate what they lack and take long: they get the short prompts.
    quick = [isa for isa in available() if isa != "portable"] or ["portable"]
    for isa, threads, batch in [*product(quick, [1, 3], [7, 512]), ("portable", 2, 256)]:
        engine = load(smollm2_path, isa=isa, threads=threads, batch=batch, ctx=1024)
        chosen = prompts[:2] if isa == "portable" else prompts
        found = replies(engine, requests(engine, chosen, max_tokens=8))
        assert all(len(r.prompt) > 512 for r in requests(engine, prompts[2:]))
        baseline = baseline or found
        assert found == {key: baseline[key] for key in found}, (isa, threads, batch)


@paths
def test_few_blocks_make_sequences_give_way_but_change_nothing(path: Path) -> None:
    roomy = load(path, ctx=192)
    wanted = requests(roomy, max_tokens=60)
    # As many blocks as one full context needs: nearly every step someone has to give way.
    cramped = load(path, ctx=192, num_blocks=blocks_for(192))
    expected = replies(roomy, wanted)
    found: dict[str, list[int]] = {}
    for request_id, delta in cramped.generate(wanted):
        found.setdefault(request_id, []).extend(delta.tokens)
    assert found == {key: tokens for key, (tokens, _, _) in expected.items()}
    assert cramped.stats().preemptions > 0


@pytest.fixture(scope="module")
def shared_engine() -> Engine:
    return load(MODEL_PATHS[0], ctx=256)


@pytest.fixture(scope="module")
def expected(shared_engine: Engine) -> dict[str, tuple[list[int], str, str]]:
    return alone(shared_engine, requests(shared_engine))


@given(
    order=st.permutations(range(len(PROMPTS))),
    gaps=st.lists(st.integers(0, 6), min_size=len(PROMPTS), max_size=len(PROMPTS)),
    lifetimes=st.lists(
        st.none() | st.integers(0, 30), min_size=len(PROMPTS), max_size=len(PROMPTS)
    ),
)
@settings(max_examples=40)
def test_joining_leaving_and_aborting_change_nobody_else(
    shared_engine: Engine,
    expected: dict[str, tuple[list[int], str, str]],
    order: list[int],
    gaps: list[int],
    lifetimes: list[int | None],
) -> None:
    wanted = requests(shared_engine)
    found: dict[str, list[int]] = {r.id: [] for r in wanted}
    arrivals = {i: sum(gaps[: k + 1]) for k, i in enumerate(order)}
    live: set[str] = set()
    step = 0
    while step <= max(arrivals.values()) or live:
        for i, at_step in arrivals.items():
            if at_step == step:
                shared_engine.submit(wanted[i])
                live.add(wanted[i].id)
        for request_id, delta in shared_engine.step() or []:
            found[request_id] += delta.tokens
            if delta.finish_reason:
                live.discard(request_id)
        for i, lifetime in enumerate(lifetimes):
            if lifetime is not None and arrivals[i] + lifetime == step and wanted[i].id in live:
                shared_engine.abort(wanted[i].id)
                live.discard(wanted[i].id)
        step += 1
    shared_engine.check_blocks()
    assert shared_engine.stats().blocks_used == 0
    for i, lifetime in enumerate(lifetimes):
        tokens, whole = found[str(i)], expected[str(i)][0]
        assert tokens == (whole if lifetime is None else whole[: len(tokens)])
