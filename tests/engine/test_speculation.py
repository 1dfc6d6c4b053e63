"""Drafts change the number of steps, never a reply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_cases import MODEL_PATHS, load, replies, requests
from samovar import Engine, Request, SamplingParams
from samovar.engine.speculate import GRAM, NGrams, Speculation

NUM_CTX = 512


def drafting(path: Path) -> Engine:
    """An engine that drafts whenever it can, so that wrong drafts are tested too."""
    return load(path, ctx=NUM_CTX, speculate="ngram")


@pytest.mark.parametrize("path", MODEL_PATHS, ids=lambda path: path.stem)
def test_replies_are_the_same_with_and_without(path: Path) -> None:
    plain, fast = load(path, ctx=NUM_CTX, speculate="off"), drafting(path)
    cases = requests(plain, max_tokens=80)
    # Few tokens and strong repetition: many drafts, right ones and wrong ones.
    repeating = SamplingParams(temperature=0.7, top_k=2, seed=3)
    cases += [replace(cases[2], id="k2", sampling=repeating)]
    cases += [replace(cases[2], id="pen", sampling=replace(repeating, frequency_penalty=0.3))]
    cases += [replace(cases[2], id="rep", sampling=replace(repeating, repeat_penalty=1.1))]
    for case in cases:
        assert replies(fast, [case]) == replies(plain, [case]), case.id
    assert replies(fast, cases) == replies(plain, cases)
    assert fast.stats().steps < plain.stats().steps


def test_usage_counts_drafts_and_the_end_is_kept() -> None:
    engine = drafting(MODEL_PATHS[0])
    greedy = Request(id="r", prompt=(70, 71, 72), sampling=SamplingParams(), max_tokens=100)
    *_, (_, last) = engine.generate([greedy])
    assert last.usage.completion_tokens == 100
    assert 0 < last.usage.accepted_draft_tokens < 100
    tokens = replies(engine, [greedy])["r"][0]
    for end in (tokens[40], tokens[-1]):
        ended = replace(greedy, end_ids=frozenset({end}))
        assert replies(engine, [ended])["r"][0] == tokens[: tokens.index(end) + 1]


def test_rejected_drafts_never_enter_the_prefix_tree() -> None:
    engine = drafting(MODEL_PATHS[0])
    (case,) = requests(engine, max_tokens=90)[2:3]
    tokens = replies(engine, [case])[case.id][0]
    turn = replace(case, prompt=(*case.prompt, *tokens, 40), id="turn")
    fresh = load(MODEL_PATHS[0], ctx=NUM_CTX, speculate="off")
    assert replies(engine, [turn]) == replies(fresh, [turn])


@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60), most=st.integers(1, 9))
def test_a_draft_is_what_followed_the_last_occurrence(tokens: list[int], most: int) -> None:
    ngrams = NGrams()
    for end in range(1, len(tokens) + 1):  # the index grows with the sequence
        draft = ngrams.propose(tokens[:end], most)
    tail = tokens[-GRAM:]
    starts = [i for i in range(len(tokens) - GRAM) if tokens[i : i + GRAM] == tail]
    if len(tokens) >= GRAM and starts:
        assert list(draft) == tokens[starts[-1] + GRAM :][:most]
    else:
        assert draft == ()


def test_drafts_stop_when_they_do_not_pay_and_are_tried_again() -> None:
    speculation = Speculation("auto")
    speculation.note(0, 0, 0, 1.0)
    tried = 0
    for _ in range(1000):
        if speculation.draft_budget(1):
            tried += 1
            speculation.note(8, 0, 1, 1.5)
        else:
            speculation.note(0, 0, 0, 1.0)
    assert 10 < tried < 40
    for _ in range(1000):
        if speculation.draft_budget(1):
            speculation.note(8, 8, 1, 1.5)
    assert speculation.draft_budget(1)
