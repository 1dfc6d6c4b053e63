"""Random mixes of requests: each reply is the one computed alone, and no block is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_cases import MODEL_PATHS, Reply, load, whole_replies
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import blocks_for
from samovar.engine.speculate import MOST_DRAFTS, Lookup

NUM_CTX = 256
NUM_KEYS = 3

# Prompts are made of few pieces of odd lengths and cut anywhere: they share prefixes of every kind.
PIECES = [
    tuple(range(30, 75)),
    tuple(range(90, 122)),
    (7,) * 20,
    (8, 9) * 13,
    tuple("naïve café, 東京, \U0001f469\u200d\U0001f680".encode()),
]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, top_p=1.0),
    SamplingParams(temperature=0.7, top_k=2),  # repeats itself: drafts, right ones and wrong ones
    SamplingParams(temperature=1.2, min_p=0.01, frequency_penalty=0.5, repeat_penalty=1.2),
    SamplingParams(temperature=0.5, logit_bias=((65, 2.0), (66, -100.0)), presence_penalty=1.0),
]
STOPS: list[tuple[str, ...]] = [(), (), ("A",), ("\n", "e ", "\u4eac"), ("ab", "\ufffd\ufffd")]


@dataclass(frozen=True)
class Arrival:
    """A request, the steps between the arrival before and its own, and when its client leaves.

    after: the arrival, counted backwards, whose prompt and reply the prompt begins with.
    """

    request: Request
    gap: int
    lifetime: int | None
    after: int | None = None


@st.composite
def requests(draw: st.DrawFn) -> Request:
    pieces = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
    prompt = sum(pieces, ())
    prompt_logprobs = draw(st.sampled_from([None, None, None, 0, 2]))
    prompt_only = prompt_logprobs is not None and draw(st.booleans())
    return Request(
        id="",
        prompt=prompt[: max(1, len(prompt) - draw(st.sampled_from([0, 0, 0, 1, 13, 32, 40])))],
        sampling=replace(draw(st.sampled_from(SAMPLINGS)), seed=draw(st.integers(0, 3))),
        max_tokens=draw(st.sampled_from([24, 24, 40, 3, 1])),
        stop=draw(st.sampled_from(STOPS)),
        end_ids=frozenset({draw(st.sampled_from([256, 101]))}),
        n=1 if prompt_only else draw(st.sampled_from([1, 1, 1, 2, 3])),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        prompt_logprobs=prompt_logprobs,
        prompt_only=prompt_only,
        owner=f"key {draw(st.integers(1, NUM_KEYS))}",
    )


arrivals = st.lists(
    st.builds(
        Arrival,
        request=requests(),
        gap=st.integers(0, 5),
        lifetime=st.none() | st.none() | st.integers(0, 30),
        after=st.none() | st.integers(1, 3),
    ),
    min_size=3,
    max_size=9,
)


# Second turns, each when the reply before it has surely ended.
CONVERSATIONS = [
    Arrival(
        Request(
            id="",
            prompt=PIECES[0] if first else PIECES[2],
            sampling=SamplingParams(),
            max_tokens=max_tokens,
            owner=f"conversation {max_tokens}",
        ),
        gap=0 if first else 60,
        lifetime=None,
        after=None if first else 1,
    )
    for max_tokens in (22, 25, 28, 31)
    for first in (True, False)
]

# Six prompts of two blocks that share nothing, and replies that need a third each: with fewer than
# twelve blocks some must give way.
PRESSING = [
    Arrival(
        Request(
            id="",
            prompt=PIECES[0],
            sampling=SamplingParams(temperature=1.0, seed=seed),
            max_tokens=40,
            owner=f"key {seed} alone",
        ),
        gap=0,
        lifetime=None,
    )
    for seed in range(6)
]


def begins(part: Reply, whole: Reply) -> bool:
    """Whether `part` is what had come of the whole reply when its client left."""
    return (
        whole.tokens[: len(part.tokens)] == part.tokens
        and whole.text.startswith(part.text)
        and whole.logprobs[: len(part.logprobs)] == part.logprobs
        and part.prompt_logprobs in ([], whole.prompt_logprobs)
        and part.finish_reason in (None, whole.finish_reason)
    )


class Judge:
    """Computes each request alone, from an empty cache, and remembers the replies."""

    def __init__(self, path: Path) -> None:
        self._engine = load(path, ctx=NUM_CTX, speculate="off")
        self._known: dict[Request, list[Reply]] = {}
        self._next: dict[tuple[int, ...], list[int]] = {}  # of the replies, after what is before

    def replies(self, request: Request) -> list[Reply]:
        """The reply of each choice."""
        request = replace(request, id="judged", owner="")
        if request not in self._known:
            self._engine.forget()
            self._known[request] = whole_replies(self._engine, [request])[request.id]
            for reply in self._known[request]:
                for i in range(len(reply.tokens)):
                    before = (*request.prompt, *reply.tokens[:i])
                    self._next[before] = reply.tokens[i : i + MOST_DRAFTS]
        return self._known[request]

    def foretell(self, lookup: Lookup, tokens: list[int], most: int) -> tuple[int, ...]:
        """Drafts out of any reply that went on from these tokens: mostly right, up to its end."""
        return tuple(self._next.get(tuple(tokens), []))[:most]


def next_turn(judge: Judge, last: Request, request: Request) -> Request:
    """`request` as the turn after the one of `last`, if both fit the context."""
    reply = judge.replies(last)[0].tokens
    prompt = (*last.prompt, *reply, *request.prompt)
    fits = len(prompt) + request.max_tokens <= NUM_CTX
    return replace(request, prompt=prompt, owner=last.owner) if fits else request


# One context is eight blocks: with few more, something is evicted or gives way nearly every step.
CONDITIONS: dict[str, dict[str, object]] = {
    "roomy": {"batch": 64},
    "cramped": {"batch": 19, "speculate": "off", "num_blocks": blocks_for(NUM_CTX) + 3},
    "drafting": {"batch": 33, "speculate": "ngram", "num_blocks": blocks_for(NUM_CTX)},
    "few places": {"batch": 5, "speculate": "ngram", "max_sequences": 2, "num_blocks": 8},
    "foretold": {"batch": 48, "speculate": "ngram", "num_blocks": blocks_for(NUM_CTX) + 2},
    "on disk": {"batch": 40, "num_blocks": blocks_for(NUM_CTX) + 1},
    # One block is all that a step has time to read.
    "on a slow disk": {"batch": 40, "num_blocks": blocks_for(NUM_CTX) + 1, "max_step_ms": 0},
}


@pytest.fixture(scope="module")
def judges() -> dict[Path, Judge]:
    return {path: Judge(path) for path in MODEL_PATHS}


@pytest.fixture
def crowded(
    path: Path,
    condition: str,
    judges: dict[Path, Judge],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Engine]:
    """An engine that keeps what it has cached from mix to mix."""
    options = dict(CONDITIONS[condition])
    if "disk" in condition:
        options |= {"cache_dir": str(tmp_path), "cache_disk_gb": 40 * 17_000 / 2**30}
    if condition == "foretold":
        judge = judges[path]
        monkeypatch.setattr(Lookup, "propose", lambda *args: judge.foretell(*args))
    engine = load(path, ctx=NUM_CTX, **options)
    yield engine
    if condition not in ("roomy", "few places"):
        assert engine.stats().preemptions > 0  # else the mixes proved less than they say
    engine.close()


@pytest.mark.parametrize("path", MODEL_PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("condition", CONDITIONS)
@given(arrivals=arrivals)
@example(arrivals=PRESSING)
@example(arrivals=CONVERSATIONS)
@settings(max_examples=50)
def test_a_reply_is_the_one_computed_alone(
    judges: dict[Path, Judge], crowded: Engine, path: Path, arrivals: list[Arrival]
) -> None:
    engine = crowded
    wanted: list[Request] = []
    for arrival in arrivals:
        wanted.append(replace(arrival.request, id=str(len(wanted))))
        if arrival.after is not None and arrival.after < len(wanted):
            wanted[-1] = next_turn(judges[path], wanted[-1 - arrival.after], wanted[-1])
    expected = {r.id: judges[path].replies(r) for r in wanted}
    due = [sum(arrival.gap for arrival in arrivals[: i + 1]) for i in range(len(arrivals))]
    found = {r.id: [Reply() for _ in range(r.n)] for r in wanted}
    live: dict[str, int] = {}  # unfinished choices
    step = 0
    while step <= due[-1] or live:
        for r, at_step in zip(wanted, due, strict=True):
            if at_step == step:
                engine.submit(r)
                live[r.id] = r.n
        for request_id, delta in engine.step() or []:
            found[request_id][delta.choice].add(delta)
            if delta.finish_reason:
                live[request_id] -= 1
                if not live[request_id]:
                    del live[request_id]
        for r, at_step, arrival in zip(wanted, due, arrivals, strict=True):
            if arrival.lifetime is not None and at_step + arrival.lifetime == step and r.id in live:
                engine.abort(r.id)
                del live[r.id]
        engine.check_blocks()
        step += 1
    assert engine.is_idle
    assert engine.stats().blocks_used == 0
    for r, arrival in zip(wanted, arrivals, strict=True):
        whole = expected[r.id]
        if arrival.lifetime is None:
            assert found[r.id] == whole
        else:
            assert all(begins(part, full) for part, full in zip(found[r.id], whole, strict=True))
