"""GGUF metadata and tensors under Hugging Face's names, and what is refused on the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from gguf_writer import GGUFWriter, Typed
from samovar.checkpoint import Checkpoint, open_checkpoint
from samovar.errors import CheckpointError, MissingTensor, UnsupportedModel


def opened(writer: GGUFWriter, tmp_path: Path) -> Checkpoint:
    return open_checkpoint(writer.write(tmp_path / "m.gguf"))


def test_llama_config_is_shaped_like_config_json(tmp_path: Path) -> None:
    checkpoint = opened(tiny_gguf.llama(), tmp_path)
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    assert checkpoint.chat_template == "{{ messages[0]['content'] }}"


def test_gemma3_config_holds_what_files_leave_out(tmp_path: Path) -> None:
    config = opened(tiny_gguf.gemma3(), tmp_path).config
    assert config["model_type"] == "gemma3_text"
    assert config["hidden_activation"] == "gelu_pytorch_tanh"
    assert config["layer_types"] == ["sliding_attention"] * 2
    assert config["sliding_window"] == 32
    assert config["rope_local_base_freq"] == 10000.0
    assert config["query_pre_attn_scalar"] == config["head_dim"] == 32
    assert config["final_logit_softcapping"] is None
    assert config["eos_token_id"] == 2

    writer = tiny_gguf.gemma3(
        gemma3__attention__sliding_window_pattern=2,
        gemma3__rope__scaling__type="linear",
        gemma3__rope__scaling__factor=8.0,
        gemma3__final_logit_softcapping=30.0,
    )
    config = opened(writer, tmp_path).config
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["final_logit_softcapping"] == 30.0


@pytest.mark.parametrize(
    ("kind", "factor", "scaling"),
    [
        (None, None, None),
        (None, 4.0, {"rope_type": "linear", "factor": 4.0}),
        ("linear", 4.0, {"rope_type": "linear", "factor": 4.0}),
        ("none", None, None),
        ("none", 1.0, None),
    ],
)
def test_a_rope_factor_alone_scales_linearly(
    tmp_path: Path, kind: str | None, factor: float | None, scaling: dict[str, Any] | None
) -> None:
    writer = tiny_gguf.llama(llama__rope__scaling__type=kind, llama__rope__scaling__factor=factor)
    assert opened(writer, tmp_path).config["rope_scaling"] == scaling


def test_the_whole_is_listed_without_being_used(tmp_path: Path) -> None:
    writer = tiny_gguf.llama("F32", general__name="Tiny", general__license="mit")
    writer.tensor("extra.weight", "F32", (2, 3), bytes(24))
    checkpoint = opened(writer, tmp_path)
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors()}
    assert tensors.keys() == checkpoint.unused()
    assert (tensors["extra.weight"].shape, tensors["extra.weight"].num_bytes) == ((2, 3), 24)
    assert all(tensor.num_bytes == tensor.data.nbytes for tensor in tensors.values())
    assert (checkpoint.title, checkpoint.licence) == ("Tiny", "mit")
    nameless = opened(tiny_gguf.llama(general__name=3), tmp_path)
    assert (nameless.title, nameless.licence) == (None, None)


def test_reordered_rows_are_copied_only_when_read(tmp_path: Path) -> None:
    checkpoint = opened(tiny_gguf.llama("Q8_0"), tmp_path)
    tensor = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")
    first = tensor.data
    assert tensor.data is not first
    assert bytes(tensor.data) == bytes(first)


def test_tensors_have_hugging_face_names_and_use_is_tracked(tmp_path: Path) -> None:
    checkpoint = opened(tiny_gguf.gemma3(), tmp_path)
    layer = "model.layers.1."
    names = checkpoint.unused()
    assert {name for name in names if not name.startswith("model.layers.")} == {
        "model.embed_tokens.weight",
        "model.norm.weight",
    }
    assert {name.removeprefix(layer) for name in names if name.startswith(layer)} == {
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    }
    assert checkpoint.has("model.norm.weight")
    assert checkpoint.unused() == names
    assert checkpoint.tensor("model.norm.weight").shape == (64,)
    assert checkpoint.unused() == names - {"model.norm.weight"}
    assert not checkpoint.has("lm_head.weight")
    with pytest.raises(MissingTensor, match=r"lm_head\.weight"):
        checkpoint.tensor("lm_head.weight")


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_llama_q_and_k_rows_are_put_in_half_split_order(tmp_path: Path, kind: str) -> None:
    writer = tiny_gguf.llama(kind)
    checkpoint = opened(writer, tmp_path)
    stored = {name: data for name, _, _, data in writer.tensors}
    for short, heads in (("q", 4), ("k", 2)):
        tensor = checkpoint.tensor(f"model.layers.0.self_attn.{short}_proj.weight")
        values = tensor.format.dequantize(tensor.data).reshape(heads, 16, 64)
        raw = tensor.format.dequantize(stored[f"blk.0.attn_{short}.weight"]).reshape(heads, 16, 64)
        for pair in range(8):
            np.testing.assert_array_equal(values[:, pair], raw[:, 2 * pair])
            np.testing.assert_array_equal(values[:, pair + 8], raw[:, 2 * pair + 1])
    assert (
        bytes(checkpoint.tensor("model.layers.0.self_attn.v_proj.weight").data)
        == (stored["blk.0.attn_v.weight"])
    )


def test_gemma_rows_and_norms_are_handed_over_as_stored(tmp_path: Path) -> None:
    writer = tiny_gguf.gemma3()
    checkpoint = opened(writer, tmp_path)
    stored = {name: data for name, _, _, data in writer.tensors}
    for name, gguf_name in (
        ("self_attn.q_proj", "attn_q"),
        ("input_layernorm", "attn_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
    ):
        found = checkpoint.tensor(f"model.layers.1.{name}.weight").data
        assert bytes(found) == stored[f"blk.1.{gguf_name}.weight"]


def llama3_factors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """Llama 3's scaling as its authors wrote it, one frequency at a time."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi / (theta ** (-i / head_dim))
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_llama3_rope_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    writer = tiny_gguf.llama()
    factors = llama3_factors(16, 500000.0, 32.0)
    writer.tensor("rope_freqs.weight", "F32", (8,), factors.tobytes())
    checkpoint = opened(writer, tmp_path)
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in checkpoint.unused()


@pytest.mark.parametrize("bad", ["other", "nan", "zero", "negative", "shape", "all zero"])
def test_other_rope_factors_are_refused(tmp_path: Path, bad: str) -> None:
    writer = tiny_gguf.llama()
    factors = llama3_factors(16, 500000.0, 32.0)
    if bad == "shape":
        factors = factors[:4]
    elif bad == "all zero":
        factors = np.zeros_like(factors)
    else:
        factors[3] = {"other": 5.0, "nan": math.nan, "zero": 0.0, "negative": -1.0}[bad]
    writer.tensor("rope_freqs.weight", "F32", (len(factors),), factors.tobytes())
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        opened(writer, tmp_path)


def test_untied_head_and_biases_are_seen(tmp_path: Path) -> None:
    writer = tiny_gguf.llama("F32")
    rng = np.random.default_rng(5)
    bias = rng.standard_normal(64).astype(np.float32)
    writer.tensor("output.weight", "F32", (64, 64), bytes(4 * 64 * 64))
    writer.tensor("blk.0.attn_q.bias", "F32", (64,), bias.tobytes())
    writer.tensor("extra.weight", "F32", (1,), bytes(4))
    checkpoint = opened(writer, tmp_path)
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.config["attention_bias"] is True
    found = np.frombuffer(checkpoint.tensor("model.layers.0.self_attn.q_proj.bias").data, "<f4")
    expected = bias.reshape(4, 8, 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(found, expected)
    assert checkpoint.tensor("lm_head.weight").shape == (64, 64)
    assert "extra.weight" in checkpoint.unused()


def test_a_tensor_cannot_pass_for_a_checked_one(tmp_path: Path) -> None:
    writer = tiny_gguf.llama()
    writer.tensor("model.norm.weight", "F32", (1,), bytes(4))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: not a tensor name of GGUF"):
        opened(writer, tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"general__architecture": None}, "general.architecture: this key is missing"),
        ({"llama__block_count": None}, "llama.block_count: this key is missing"),
        ({"llama__block_count": 0}, "llama.block_count: found 0"),
        ({"llama__block_count": 1}, r"blk\.1\..*: the file declares 1 layers"),
        ({"llama__block_count": "2"}, "llama.block_count: found '2'"),
        ({"llama__attention__head_count": 0}, "head_count: found 0"),
        ({"llama__attention__head_count_kv": 3}, "no multiple of 3 KV heads"),
        ({"llama__attention__head_count": 6}, "64 is no multiple of 6 heads"),
        ({"llama__attention__head_count": [4, 2]}, "differs between layers"),
        ({"llama__attention__key_length": 15}, "odd number|only the size of a head|rows|shape"),
        ({"llama__embedding_length": 2**31}, "embedding_length: found"),
        ({"llama__embedding_length": 128}, "has the shape .64, 64., expected .64, 128."),
        ({"llama__feed_forward_length": 97}, "ffn_gate.weight: has the shape"),
        ({"llama__attention__layer_norm_rms_epsilon": math.nan}, "epsilon: found nan"),
        ({"llama__attention__layer_norm_rms_epsilon": 0.0}, "epsilon: found 0"),
        ({"llama__rope__freq_base": math.inf}, "freq_base: found inf"),
        (
            {"llama__rope__scaling__type": "none", "llama__rope__scaling__factor": 2.0},
            "rope.scaling.factor: found 2.0, but rope.scaling.type is none",
        ),
        ({"llama__rope__scaling__factor": 0.0}, "rope.scaling.factor: found 0"),
        ({"llama__context_length": 2**31}, "context_length: found"),
        ({"llama__vocab_size": 63}, "vocab_size: found 63"),
        ({"tokenizer__ggml__tokens": ["a"]}, "tokens: found an array of 1"),
    ],
)
def test_impossible_values_are_named(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        opened(tiny_gguf.llama(**changes), tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"general__architecture": "mamba"}, "'mamba' is not supported; this version runs llama"),
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type: 'yarn'"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count: found 8"),
        ({"llama__attention__value_length": 8}, "attention.value_length: found 8"),
        ({"llama__expert_count": 8}, "llama.expert_count: 8 is not supported"),
        ({"llama__attention__causal": False}, "llama.attention.causal: False"),
        ({"llama__logit_scale": 0.5}, "llama.logit_scale: 0.5 is not supported"),
    ],
)
def test_what_would_change_the_mathematics_is_refused(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(UnsupportedModel, match=match):
        opened(tiny_gguf.llama(**changes), tmp_path)


def test_harmless_keys_are_accepted(tmp_path: Path) -> None:
    writer = tiny_gguf.llama(
        llama__expert_count=0,
        llama__attention__causal=True,
        llama__attention__head_count_kv=[2, 2],
        llama__rope__scaling__type="none",
        llama__rope__scaling__finetuned=Typed("bool", False),
        llama__vocab_size=64,
        other__unrelated="x",
    )
    assert opened(writer, tmp_path).config["num_key_value_heads"] == 2
