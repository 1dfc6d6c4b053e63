"""What two prompts have in common is computed once, and a hit never changes a reply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_cases import MODEL_PATHS, load, replies
from samovar import Engine, Request, SamplingParams
from samovar.engine.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from samovar.engine.prefix import PrefixTree

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


def test_what_the_tree_notes_does_not_grow_with_its_use() -> None:
    tree = PrefixTree(BlockPool(16))
    contents = [tuple(range(i, i + BLOCK_TOKENS)) for i in range(4)]
    for _ in range(500):
        path = [tree.root("")]
        for tokens in contents:
            path.append(tree.insert(path[-1], tokens, *tree.take(1)))
        tree.release(path[1:])
    tree.check(private=[])
    assert tree.num_nodes == tree.num_idle == len(contents)
    sizes = {name: len(value) for name, value in vars(tree).items() if hasattr(value, "__len__")}
    assert max(sizes.values()) <= len(contents), sizes
