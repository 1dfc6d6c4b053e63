"""What one request gets from the engine: ends, text, errors, plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine_cases import GOLDEN, MODEL_PATHS, load, replies, requests
from samovar import Engine, Request, SamplingParams
from samovar._native import available_memory
from samovar.engine.blocks import BLOCK_TOKENS
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


def test_a_value_that_is_not_finite_fails_its_request_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes((GOLDEN / "llama_untied.gguf").read_bytes())
    sound = load(path)
    wanted = [request(sound, id="good"), request(sound, id="bad", prompt=(70, 99, 72))]
    expected = replies(sound, wanted[:1])["good"]
    _overwrite_embedding(path, token=99, value=float("inf"))
    broken = load(path)
    errors = {}
    tokens = []
    for request_id, delta in broken.generate(wanted):
        if delta.error:
            errors[request_id] = delta.error
        if request_id == "good":
            tokens += delta.tokens
    assert errors == {"bad": "The model computed a value that is not a finite number."}
    assert tokens == expected[0]
    broken.check_blocks()


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
