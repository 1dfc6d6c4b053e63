"""Tokens computed ahead leave no trace: several rows of logits, then other tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_programs import Decoder, run
from samovar import _native as native

TOKENS = np.random.default_rng(8).integers(0, 100, 80).tolist()
BLOCKS = [4, 9, 1]


def alone(kv: str) -> list[bytes]:
    """Logits after each token, each computed in a step of its own, never speculated."""
    runner = Decoder(window=40).load(threads=1, kv=kv)
    found = []
    for position, token in enumerate(TOKENS):
        run(runner, [([token], position, BLOCKS)])
        found.append(runner.logits[0].tobytes())
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, list[bytes]]:
    return {kv: alone(kv) for kv in ("f32", "bf16", "q8")}


@settings(max_examples=25)
@given(data=st.data())
def test_rejected_tokens_leave_no_trace(
    expected: dict[str, list[bytes]], data: st.DataObject
) -> None:
    """Drafts that are right for a while, then garbage; a neighbour decodes in the same steps."""
    kv = data.draw(st.sampled_from(["f32", "bf16", "q8"]))
    kind: dict[str, Any] = {
        "threads": data.draw(st.sampled_from([1, 2])),
        "isa": data.draw(st.sampled_from(native.available())),
    }
    runner = Decoder(window=40).load(kv=kv, **kind)
    neighbour = [20, 21, 22]
    start = data.draw(st.integers(1, 60))
    run(runner, [(TOKENS[:start], 0, BLOCKS)])
    done, other = start, 0
    while done < len(TOKENS):
        right = data.draw(st.integers(1, min(12, len(TOKENS) - done)))
        garbage = data.draw(st.lists(st.integers(0, 99), max_size=15 - right))
        chunk = (TOKENS[done : done + right] + garbage)[: 96 - done]
        run(
            runner,
            [(chunk, done, BLOCKS), ([TOKENS[other]], other, neighbour)],
            range(len(chunk) + 1),
        )
        logits = [row.tobytes() for row in runner.logits[: len(chunk) + 1]]
        assert logits[:right] == expected[kv][done : done + right]
        assert logits[-1] == expected[kv][other]
        done, other = done + right, other + 1


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8"])
def test_garbage_past_the_end_is_never_read(kv: str, expected: dict[str, list[bytes]]) -> None:
    """The whole rest of the context is filled with drafts, and all of them are rejected."""
    runner, cache = Decoder(window=40).load_with_cache(kv=kv)
    run(runner, [(TOKENS[:33], 0, BLOCKS)])
    clean = cache.read_block(BLOCKS[0])
    run(runner, [([99 - t for t in TOKENS[33:]] + [7] * 16, 33, BLOCKS)])
    assert cache.read_block(BLOCKS[0]) == clean  # what was accepted is not touched
    for position in range(33, len(TOKENS)):
        run(runner, [([TOKENS[position]], position, BLOCKS)])
        assert runner.logits[0].tobytes() == expected[kv][position]


def test_any_rows_may_have_logits(expected: dict[str, list[bytes]]) -> None:
    runner = Decoder(window=40).load()
    chunks = [(TOKENS[:20], 0, [0]), (TOKENS[:9], 0, [1]), (TOKENS[:30], 0, [2])]
    for rows in ([0], [1, 2, 18, 19, 20], [28, 29, 58], list(range(16)), []):
        run(runner, chunks, rows)
        for at, row in enumerate(rows):
            position = row if row < 20 else row - 20 if row < 29 else row - 29
            assert runner.logits[at].tobytes() == expected["bf16"][position]
