"""What one request gets from the engine: ends, text, errors, plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine_cases import GOLDEN, MODEL_PATHS, load, replies, requests
from samovar import Engine, Request, SamplingParams
from samovar._native import available_memory
from samovar.engine.blocks import BLOCK_TOKENS
from samovar.engine.engine import NOT_FINITE
from samovar.engine.speculate import MOST_DRAFTS, Lookup
from samovar.errors import ContextOverflow, MemoryLimit, RequestError, SettingError


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(MODEL_PATHS[0], ctx=128)


def request(engine: Engine, **changes: object) -> Request:
    base = Request(id="r", prompt=(70, 71, 72), sampling=SamplingParams(), max_tokens=30)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_max_tokens_ends_with_length(engine: Engine) -> None:
    tokens, _, reason = replies(engine, [request(engine, max_tokens=5)])["r"]
    assert (len(tokens), reason) == (5, "length")


def test_a_full_context_ends_with_length(engine: Engine) -> None:
    tokens, _, reason = replies(engine, [request(engine, max_tokens=0)])["r"]
    assert (3 + len(tokens), reason) == (128, "length")


def test_the_last_place_of_the_context_can_be_filled(engine: Engine) -> None:
    tokens, _, reason = replies(engine, [request(engine, prompt=(70,) * 127)])["r"]
    assert (len(tokens), reason) == (1, "length")


def test_an_end_token_is_counted_but_not_shown(engine: Engine) -> None:
    tokens, text, _ = replies(engine, [request(engine)])["r"]
    ended, cut, reason = replies(engine, [request(engine, end_ids=frozenset({tokens[4]}))])["r"]
    first = tokens.index(tokens[4])
    assert (ended, reason) == (tokens[: first + 1], "stop")
    assert text.startswith(cut)


def test_a_stop_string_ends_the_reply_before_it(engine: Engine) -> None:
    _, text, _ = replies(engine, [request(engine)])["r"]
    stop = text[4:7]
    _, cut, reason = replies(engine, [request(engine, stop=(stop,))])["r"]
    assert (cut, reason) == (text[: text.index(stop)], "stop")


def test_a_stop_string_that_is_never_finished_is_text(engine: Engine) -> None:
    _, text, _ = replies(engine, [request(engine)])["r"]
    _, whole, reason = replies(engine, [request(engine, stop=(text[-2:] + "never",))])["r"]
    assert (whole, reason) == (text, "length")


def test_another_seed_draws_another_reply_and_the_same_seed_the_same(engine: Engine) -> None:
    def draw(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.5, top_p=1.0, seed=seed)
        return replies(engine, [request(engine, sampling=sampling)])["r"][0]

    assert draw(2**64 - 1) == draw(2**64 - 1)
    assert draw(1) != draw(2)


def test_usage_counts_and_times(engine: Engine) -> None:
    *_, (_, delta) = engine.generate([request(engine, max_tokens=7)])
    usage = delta.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 7)
    assert usage.queue_s is not None
    assert usage.ttft_s is not None
    assert usage.ttft_s >= usage.queue_s >= 0
    assert usage.decode_s is not None


def test_a_prompt_that_fills_the_context_is_refused(engine: Engine) -> None:
    with pytest.raises(ContextOverflow, match="maximum context length is 128 tokens") as info:
        engine.submit(request(engine, prompt=(70,) * 128))
    assert info.value.num_prompt_tokens == 128
    assert engine.step() is None


@pytest.mark.parametrize("token", [-1, 300, 2**31 - 1])
def test_a_token_outside_of_the_vocabulary_is_refused(engine: Engine, token: int) -> None:
    with pytest.raises(RequestError, match="outside of 0 to 299"):
        engine.submit(request(engine, prompt=(1, token)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("min_p", -1.0),
        ("top_k", -1),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", 1e-50),
        ("frequency_penalty", 2.1),
        ("presence_penalty", float("-inf")),
        ("seed", 2**64),
    ],
)
def test_bad_sampling_values_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=field) as info:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert info.value.param == field


def test_a_negative_zero_is_a_zero(engine: Engine) -> None:
    greedy = replies(engine, [request(engine)])
    for zero in (-0.0, -5e-324 * 0.1):
        sampling = SamplingParams(temperature=zero, seed=3)
        assert replies(engine, [request(engine, sampling=sampling)]) == greedy


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=5e-324),
        SamplingParams(temperature=1e-45, top_p=1e-300, min_p=1e-300),
        SamplingParams(temperature=100.0, top_p=0.0, min_p=1.0, top_k=2**31 - 1),
        SamplingParams(repeat_penalty=1e-6, frequency_penalty=2.0, presence_penalty=-2.0),
        SamplingParams(repeat_penalty=100.0, repeat_last_n=2**31 - 1, temperature=1e-3),
        SamplingParams(temperature=1.0, top_p=5e-324, seed=2**64 - 1),
    ],
)
def test_extreme_but_valid_values_give_a_reply(engine: Engine, sampling: SamplingParams) -> None:
    tokens, _, reason = replies(engine, [request(engine, sampling=sampling)])["r"]
    assert (len(tokens), reason) == (30, "length")


def test_closing_the_iterator_drops_what_was_asked_for(engine: Engine) -> None:
    generation = engine.generate(requests(engine)[:3])
    next(generation)
    generation.close()  # type: ignore[attr-defined]
    assert engine.stats().running == engine.stats().waiting == engine.stats().blocks_used == 0


def test_a_context_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(SettingError, match="maximum of 2048"):
        load(MODEL_PATHS[0], ctx=2049)


def test_a_cache_larger_than_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = MODEL_PATHS[0].read_bytes()
    old = (2048).to_bytes(4, "little")
    key = b"llama.context_length"
    at = data.index(old, data.index(key))
    largest = 2**26  # the most that a file may claim; 64 GiB of KV for even this small model
    path.write_bytes(data[:at] + largest.to_bytes(4, "little") + data[at + 4 :])
    if available_memory() > 60 * 2**30:
        pytest.skip("this machine has room for it")
    with pytest.raises(MemoryLimit, match="choose --ctx of at most"):
        load(path, ctx=largest, kv="f32")


def test_unknown_end_tokens_and_instruction_sets_are_refused() -> None:
    with pytest.raises(SettingError, match="--eos 300"):
        load(MODEL_PATHS[0], eos=(300,))
    with pytest.raises(SettingError, match="portable"):
        load(MODEL_PATHS[0], isa="z80")


def test_the_pool_is_planned_in_whole_contexts(engine: Engine) -> None:
    assert engine.stats().blocks_total == 32 * 128 // BLOCK_TOKENS


BAD_TOKEN = 99
LONG = tuple(30 + i * 7 % 60 for i in range(100))  # three blocks and a part, all of them sound


@pytest.fixture(scope="module")
def broken_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes nothing finite from one token of its vocabulary."""
    path = tmp_path_factory.mktemp("broken") / "broken.gguf"
    path.write_bytes((GOLDEN / "llama_untied.gguf").read_bytes())
    _overwrite_embedding(path, token=BAD_TOKEN, value=float("inf"))
    return path


@pytest.fixture(scope="module")
def sound() -> Engine:
    return load(GOLDEN / "llama_untied.gguf", ctx=256)


def outcomes(engine: Engine, wanted: list[Request]) -> dict[str, list[int] | str]:
    """The tokens of each reply, or the error it ended with."""
    found: dict[str, list[int] | str] = {}
    for request_id, delta in engine.generate(wanted):
        tokens = found.setdefault(request_id, [])
        assert isinstance(tokens, list), "an error is the last delta"
        tokens += delta.tokens
        if delta.error:
            found[request_id] = delta.error
    engine.check_blocks()
    assert engine.stats().blocks_used == 0
    return found


@pytest.mark.parametrize("batch", [512, 48, 7])
@pytest.mark.parametrize(
    ("length", "place"), [(3, 1), *((100, place) for place in (0, 20, 40, 64, 98, 99))]
)
def test_a_value_that_is_not_finite_fails_its_request_and_no_other(
    sound: Engine, broken_path: Path, tmp_path: Path, length: int, place: int, batch: int
) -> None:
    bad = request(sound, id="bad", prompt=(*LONG[:place], BAD_TOKEN, *LONG[place + 1 : length]))
    twin = replace(bad, id="twin", n=2)  # waits for what the other one computes
    beside = request(sound, id="beside", prompt=LONG[:length])
    longer = request(sound, id="longer", prompt=(*bad.prompt, *LONG))
    expected = replies(sound, [beside])["beside"][0]
    # Asked again, from the same cache or from the disk after a restart, it fails again.
    for _ in range(2):
        broken = load(broken_path, ctx=256, batch=batch, cache_dir=str(tmp_path))
        for _ in range(2):
            assert outcomes(broken, [bad, twin, beside]) == {
                "bad": NOT_FINITE,
                "twin": NOT_FINITE,
                "beside": expected,
            }
        assert outcomes(broken, [longer, bad]) == {"longer": NOT_FINITE, "bad": NOT_FINITE}
        broken.close()


def test_a_draft_that_leads_to_no_finite_value_is_none(
    sound: Engine, broken_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = load(broken_path, ctx=256, speculate="ngram")
    start = request(sound, prompt=LONG[:28])
    tokens = replies(sound, [start])["r"][0]
    assert BAD_TOKEN not in tokens
    turn = request(sound, prompt=(*start.prompt, *tokens, BAD_TOKEN), id="turn")
    for num_right in range(MOST_DRAFTS):

        def propose(
            self: Lookup, so_far: list[int], most: int, num_right: int = num_right
        ) -> tuple[int, ...]:
            right = tokens[len(so_far) - len(start.prompt) :]
            return (*right[:num_right], BAD_TOKEN, *right[num_right + 1 :])[:most]

        broken.forget()
        with monkeypatch.context() as patch:
            patch.setattr(Lookup, "propose", propose)
            assert outcomes(broken, [start]) == {"r": tokens}
        sound_turn = replace(turn, prompt=(*start.prompt, *tokens, 40))
        assert outcomes(broken, [sound_turn])["turn"] == replies(sound, [sound_turn])["turn"][0]
        assert outcomes(broken, [turn]) == outcomes(broken, [turn]) == {"turn": NOT_FINITE}


def test_a_reply_that_meets_it_fails_and_is_not_remembered(
    sound: Engine, broken_path: Path
) -> None:
    # The first choice is forced to the bad token, which the step after it computes.
    forced = SamplingParams(logit_bias=((BAD_TOKEN, 100.0),))
    broken = load(broken_path, ctx=256)
    case = request(sound, prompt=LONG[:63], sampling=forced, n=3)
    turn = request(sound, id="turn", prompt=(*LONG[:63], BAD_TOKEN, 70, 71))
    for _ in range(2):
        errors = [d.error for _, d in broken.generate([case]) if d.error]
        assert errors == [NOT_FINITE]
        assert outcomes(broken, [turn]) == {"turn": NOT_FINITE}


def _overwrite_embedding(path: Path, token: int, value: float) -> None:
    import numpy as np

    from samovar.checkpoint import open_checkpoint

    tensor = open_checkpoint(path).tensor("model.embed_tokens.weight")
    raw = bytes(tensor.data)
    data = path.read_bytes()
    start = data.index(raw)
    table = np.frombuffer(raw, dtype=np.float32).reshape(tensor.shape).copy()
    table[token, 3] = value
    path.write_bytes(data[:start] + table.tobytes() + data[start + len(raw) :])
