"""A reply depends on the request and the model alone: not a bit changes with how it is computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from engine_cases import MODEL_PATHS, PROMPTS, Reply, load, replies, requests, whole_replies
from samovar import Engine, Request
from samovar._native import available
from samovar.engine.blocks import blocks_for

paths = pytest.mark.parametrize("path", MODEL_PATHS, ids=lambda path: path.stem)
kinds = pytest.mark.parametrize("kv", ["bf16", "f32", "q8"])
NUM_OTHERS = 32


def cases(engine: Engine, *, max_tokens: int = 24) -> list[Request]:
    """One request for each prompt, with log probabilities, some with several choices or an echo."""
    return [
        replace(
            case,
            n=1 + (i % 3 == 2),
            logprobs=(None, 0, 5, 20)[i % 4],
            prompt_logprobs=2 if i == 3 else None,
        )
        for i, case in enumerate(requests(engine, max_tokens=max_tokens))
    ]


def from_scratch(engine: Engine, wanted: Iterable[Request]) -> dict[str, list[Reply]]:
    """Each request alone, with an empty cache."""
    found: dict[str, list[Reply]] = {}
    for case in wanted:
        engine.forget()
        found |= whole_replies(engine, [case])
    return found


@paths
@kinds
def test_alone_and_among_others(path: Path, kv: str) -> None:
    engine = load(path, kv=kv, ctx=512, max_sequences=NUM_OTHERS + 1)
    wanted = cases(engine)
    expected = from_scratch(engine, wanted)
    # They begin as the prompts do, so that the mixture shares blocks too.
    others = [
        replace(case, id=f"{case.id} {i}", prompt=case.prompt[: 1 + i * 7], n=1, max_tokens=8 + i)
        for i in range(1 + NUM_OTHERS // len(PROMPTS))
        for case in wanted
    ]
    assert len(others) >= NUM_OTHERS
    engine.forget()
    together = whole_replies(engine, [*others[:20], *wanted, *others[20:]])
    assert {case.id: together[case.id] for case in wanted} == expected


@paths
@kinds
def test_threads_chunks_and_instruction_sets(path: Path, kv: str) -> None:
    baseline = None
    ways = [(1, 1), (1, 512), (2, 7), (3, 1), (3, 512)]
    for isa, (threads, batch) in product(available(), ways):
        engine = load(path, kv=kv, isa=isa, threads=threads, batch=batch)
        found = whole_replies(engine, cases(engine, max_tokens=8))
        baseline = baseline or found
        assert found == baseline, (isa, threads, batch)


@paths
@kinds
def test_cold_warm_and_from_the_disk_of_another_instruction_set(
    path: Path, kv: str, tmp_path: Path
) -> None:
    expected = None
    computed = []
    for i, isa in enumerate([*available(), available()[0]]):
        threads, batch = (1, 2, 3)[i % 3], (512, 5, 33)[i % 3]
        options = {"kv": kv, "isa": isa, "threads": threads, "batch": batch, "ctx": 512}
        # What one set has computed and written, the next one finds, adds to, and goes on from.
        engine = load(path, cache_dir=str(tmp_path), **options)
        wanted = cases(engine, max_tokens=16 + 12 * i)
        expected = from_scratch(load(path, **options), wanted)
        assert whole_replies(engine, wanted) == expected
        computed.append(engine.stats().tokens_computed)
        assert whole_replies(engine, wanted) == expected
        engine.close()
    assert expected is not None
    assert computed[1] < computed[0]


@paths
def test_few_blocks_make_sequences_give_way_but_change_nothing(path: Path) -> None:
    roomy = load(path, ctx=192)
    wanted = cases(roomy, max_tokens=60)
    expected = from_scratch(roomy, wanted)
    for isa in available():
        # As many blocks as one full context needs: nearly every step someone has to give way.
        cramped = load(path, ctx=192, isa=isa, num_blocks=blocks_for(192))
        assert whole_replies(cramped, wanted) == expected
        assert cramped.stats().preemptions > 0


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
