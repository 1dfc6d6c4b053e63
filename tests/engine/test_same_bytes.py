"""A reply depends on the request and the model alone: not a bit changes with how it is computed."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from engine_cases import MODEL_PATHS, alone, load, replies, requests
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
