"""Drafts change the number of steps, never a reply."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_cases import MODEL_PATHS, load, replies, requests
from samovar import Engine, Request, SamplingParams
from samovar.engine.speculate import (
    GRAMS,
    INDEX_TOKENS,
    MOST_DRAFTS,
    MOST_REPLIES,
    Lookup,
    Speculation,
)

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


@pytest.fixture(scope="module")
def fresh() -> Engine:
    return load(MODEL_PATHS[0], ctx=NUM_CTX, speculate="off")


def from_scratch(engine: Engine, case: Request) -> tuple[list[int], str, str]:
    engine.forget()
    return replies(engine, [case])[case.id]


@pytest.mark.parametrize("max_tokens", range(60, 93))
def test_rejected_drafts_never_enter_the_prefix_tree(fresh: Engine, max_tokens: int) -> None:
    engine = drafting(MODEL_PATHS[0])
    (case,) = requests(engine, max_tokens=max_tokens)[2:3]
    tokens = replies(engine, [case])[case.id][0]
    turn = replace(case, prompt=(*case.prompt, *tokens, 40), id="turn")
    assert replies(engine, [turn])["turn"] == from_scratch(fresh, turn)


@pytest.mark.parametrize("num_right", [1, 5, 10, MOST_DRAFTS])
@pytest.mark.parametrize("max_tokens", [*range(1, 14), *range(30, 48)])
def test_the_turn_after_a_drafted_reply_is_as_without_drafts(
    fresh: Engine, monkeypatch: pytest.MonkeyPatch, max_tokens: int, num_right: int
) -> None:
    case = Request(
        id="r", prompt=tuple(range(40, 68)), sampling=SamplingParams(), max_tokens=max_tokens
    )
    tokens, *rest = from_scratch(fresh, case)
    turn = replace(case, prompt=(*case.prompt, *tokens, 40, 41), id="turn", max_tokens=20)
    expected = from_scratch(fresh, turn)

    def propose(self: Lookup, so_far: list[int], most: int) -> tuple[int, ...]:
        """As many right drafts as asked for, then wrong ones."""
        right = tokens[len(so_far) - len(case.prompt) :][:num_right]
        return (*right, *[(token + 1) % 256 for token in tokens])[:most]

    engine = drafting(MODEL_PATHS[0])
    with monkeypatch.context() as patch:
        patch.setattr(Lookup, "propose", propose)
        assert replies(engine, [case])["r"] == (tokens, *rest)
    assert replies(engine, [turn])["turn"] == expected
    engine.check_blocks()


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 13, 40])
def test_usage_counts_the_drafts_of_the_last_step_too(
    fresh: Engine, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    case = Request(
        id="r", prompt=tuple(range(40, 68)), sampling=SamplingParams(), max_tokens=max_tokens
    )
    tokens = from_scratch(fresh, case)[0]

    def propose(self: Lookup, so_far: list[int], most: int) -> tuple[int, ...]:
        return tuple(tokens[len(so_far) - len(case.prompt) :][:most])

    engine = drafting(MODEL_PATHS[0])
    monkeypatch.setattr(Lookup, "propose", propose)
    *_, (_, last) = engine.generate([case])
    assert last.usage.completion_tokens == max_tokens
    # Each step samples one token; the others were drafts.
    assert last.usage.accepted_draft_tokens == max_tokens - engine.stats().steps
    assert last.usage.rejected_draft_tokens == 0
    assert (last.usage.accepted_draft_tokens > 0) == (max_tokens > 2)


@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60), most=st.integers(1, 12))
def test_a_draft_goes_on_as_an_earlier_occurrence_did(tokens: list[int], most: int) -> None:
    lookup = Lookup()
    for end in range(1, len(tokens) + 1):  # the index grows with the sequence
        draft = lookup.propose(tokens[:end], most)
    gram = min(GRAMS)
    tail = tokens[-gram:]
    ends = [i for i in range(gram, len(tokens)) if tokens[i - gram : i] == tail]
    if len(tokens) < gram or not ends:
        assert draft == ()
        return
    assert len(draft) == most
    # A longer match that is being followed may not be the last one of its last tokens.
    followed = [(*tokens, *draft)[end : end + most] for end in ends]
    assert draft in followed
    assert 0 < lookup.chance(most) < 1


def test_chances_follow_what_the_sequence_does() -> None:
    copying, alternating = Lookup(), Lookup()
    passage = list(range(100))
    for end in range(1, 100):
        copying.propose([*passage, *passage[:end]], 1)
    text = [0, 1, 2]
    for i in range(100):  # after 1, 2 comes something new each time
        text += [3 + i, 1, 2]
        alternating.propose(text, 1)
    assert copying.chance(0) > 0.9
    assert alternating.chance(0) < 0.15


def share(speculation: Speculation, *lookups: Lookup) -> int:
    counts = speculation.share({i: (lookup, MOST_DRAFTS) for i, lookup in enumerate(lookups)})
    return sum(counts.values())


@pytest.mark.parametrize("num_replies", [1, 2, MOST_REPLIES])
def test_drafts_are_made_while_they_pay(num_replies: int) -> None:
    hopeful, hopeless = [], []
    for _ in range(num_replies):
        hopeful.append(Lookup())
        hopeful[-1].propose([1, 2, 3, 4, 5, 6, 7, 8, 9] * 6, 1)
        hopeless.append(Lookup())
        for i in range(100):
            hopeless[-1].propose([token for j in range(i) for token in (3 + j, 1, 2)], 1)
    speculation = Speculation("auto")
    assert share(speculation, *hopeful) == 0  # before it knows how long a step lasts
    speculation.note(num_replies, 0, 1.0)
    assert share(speculation, *hopeful) == MOST_DRAFTS
    assert share(speculation, *hopeless) == 0
    for _ in range(1000):  # a machine on which each further row costs a whole step
        if num_drafts := share(speculation, *hopeful):
            speculation.note(num_replies, num_drafts, 1.0 + num_drafts)
        else:
            speculation.note(num_replies, 0, 1.0)
    assert share(speculation, *hopeful) == 0
    assert not speculation.may_draft(MOST_REPLIES + 1)


def test_one_disturbed_step_does_not_end_drafts() -> None:
    lookup = Lookup()
    lookup.propose([1, 2, 3, 4, 5, 6, 7, 8, 9] * 6, 1)
    speculation = Speculation("auto")
    speculation.note(1, 0, 1.0)
    speculation.note(1, share(speculation, lookup), 1000.0)
    assert share(speculation, lookup) > 0


class Fixed(Lookup):
    """Its drafts are right with these chances, each if those before it are."""

    def __init__(self, *chances: float) -> None:
        super().__init__()
        self.chances = chances

    def chance(self, ahead: int) -> float:
        return self.chances[ahead]


def run_steps(
    speculation: Speculation, lookup: Fixed, num_steps: int, cost: Callable[[int], float]
) -> tuple[list[int], float]:
    """The drafts of each step, and the expected tokens in the time of a step without any.

    cost: how long a step with so many drafts lasts.
    """
    drafts, tokens, seconds = [], 0.0, 0.0
    for _ in range(num_steps):
        counts = speculation.share({0: (lookup, len(lookup.chances))})
        drafts.append(counts.get(0, 0))
        tokens += sum(accumulate(lookup.chances[: drafts[-1]], operator.mul, initial=1.0))
        seconds += cost(drafts[-1])
        speculation.note(1, drafts[-1], cost(drafts[-1]))
    return drafts, tokens * cost(0) / seconds


@pytest.mark.parametrize("row", [0.05, 0.15, 0.25])
@pytest.mark.parametrize("slowness", [1.3, 1.7, 2.5, 10.0])
@pytest.mark.parametrize("only_drafts", [False, True])
def test_drafts_come_back_after_a_disturbance(
    row: float, slowness: float, only_drafts: bool
) -> None:
    lookup = Fixed(0.75, 0.65, 0.55, 0.4)
    speculation = Speculation("auto")
    run_steps(speculation, lookup, 1000, lambda n: 1 + row * n)
    before = run_steps(speculation, lookup, 2000, lambda n: 1 + row * n)
    disturbed = run_steps(
        speculation,
        lookup,
        60,
        lambda n: (1 + row * n) * (slowness if n or not only_drafts else 1.0),
    )
    assert max(disturbed[0]) > 0
    soon = run_steps(speculation, lookup, 1000, lambda n: 1 + row * n)
    assert soon[1] > 0.75 * before[1]
    run_steps(speculation, lookup, 4000, lambda n: 1 + row * n)
    after = run_steps(speculation, lookup, 2000, lambda n: 1 + row * n)
    assert Counter(after[0]).most_common(1)[0][0] == Counter(before[0]).most_common(1)[0][0] > 0
    assert after[1] > 0.99 * before[1] > 1.1


@pytest.mark.parametrize("row", [0.7, 1.0])  # of a step; a further row never costs more
@pytest.mark.parametrize("chances", [(0.3, 0.3), (0.6,) * 12, (0.65,) * 12])
def test_drafts_that_never_pay_cost_next_to_nothing(row: float, chances: list[float]) -> None:
    speculation = Speculation("auto")
    run_steps(speculation, Fixed(*chances), 1000, lambda n: 1 + row * n)
    drafts, rate = run_steps(speculation, Fixed(*chances), 50_000, lambda n: 1 + row * n)
    assert 0.99 < rate < 1
    assert 0 < sum(map(bool, drafts)) < 1000


@pytest.mark.parametrize("num_tokens", [5000, 100_000])
def test_a_long_prompt_is_indexed_over_many_steps_from_its_end(num_tokens: int) -> None:
    lookup = Lookup()
    tokens = list(range(num_tokens))  # each run occurs once
    num_reads = []

    class Counting(list[int]):
        def __getitem__(self, at: Any) -> Any:
            reads[0] += 1
            return super().__getitem__(at)

    for back in (10, 3000, num_tokens - 10):
        reads = [0]
        # A reply repeats what is so far from the end, as soon as the index has come so far.
        for _ in range(1 + back // INDEX_TOKENS):
            reads[0] = 0
            assert lookup.propose(Counting(tokens), 3) == ()
            num_reads.append(reads[0])
            tokens.append(num_tokens + len(tokens))
        tokens += tokens[num_tokens - back :][:4]
        assert lookup.propose(Counting(tokens), 3) == tuple(tokens[num_tokens - back + 4 :][:3])
        tokens.append(num_tokens + len(tokens))
        lookup.propose(tokens, 3)
    assert max(num_reads) < 3 * INDEX_TOKENS


def test_the_index_catches_up_after_steps_without_it() -> None:
    lookup = Lookup()
    tokens = list(range(10))
    lookup.propose(tokens, 3)
    tokens += range(10, 4 * INDEX_TOKENS)
    for i in range(4):
        assert lookup.propose(tokens, 3) == ()
        tokens.append(10**6 + i)
    tokens += [4 * INDEX_TOKENS - 9 + i for i in range(4)]
    assert lookup.propose(tokens, 3) == tuple(4 * INDEX_TOKENS - 5 + i for i in range(3))
