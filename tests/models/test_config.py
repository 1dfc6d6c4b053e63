"""Configurations: typed reads, and refusal of what is not implemented."""

from __future__ import annotations

from typing import Any

import pytest

from samovar.errors import CheckpointError, UnsupportedModel
from samovar.models import gemma3, llama
from samovar.models.config import ConfigReader

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
GEMMA = LLAMA | {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 512}


def reader(config: dict[str, Any]) -> ConfigReader:
    return ConfigReader(config, "model.gguf")


def test_llama_defaults() -> None:
    c = llama.Config.read(reader(LLAMA))
    assert (c.head_dim, c.num_key_value_heads, c.sliding_window) == (32, 2, 0)
    assert (c.rope.theta, c.rope.dim, c.rope.factor) == (10000.0, 32, 1.0)
    without = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert llama.Config.read(reader(without)).num_key_value_heads == 4


def test_gemma3_layers_by_pattern_and_by_list() -> None:
    by_default = gemma3.Config.read(reader(GEMMA | {"num_hidden_layers": 7}))
    assert by_default.windows == (512, 512, 512, 512, 512, 0, 512)
    assert [rope.theta for rope in by_default.ropes] == [1e4] * 5 + [1e6, 1e4]
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    assert gemma3.Config.read(reader(GEMMA | {"layer_types": types})).windows == (0, 512, 512)
    pattern = gemma3.Config.read(reader(GEMMA | {"sliding_window_pattern": 2}))
    assert pattern.windows == (512, 0, 512)


def test_gemma3_scales_only_the_full_layers() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = gemma3.Config.read(reader(GEMMA | {"rope_scaling": scaling, "num_hidden_layers": 6}))
    new = gemma3.Config.read(
        reader(
            GEMMA
            | {
                "num_hidden_layers": 6,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                    "full_attention": {"rope_theta": 1000000.0, **scaling},
                },
            }
        )
    )
    assert old.ropes == new.ropes
    assert [rope.factor for rope in old.ropes] == [1.0] * 5 + [8.0]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling.type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 48}, "head_dim"),
        ({"head_dim": 512}, "head_dim"),
    ],
)
def test_llama_refuses_what_is_not_implemented(change: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"model.gguf: {key}"):
        llama.Config.read(reader(LLAMA | change))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_activation": "relu"}, "hidden_activation"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention", "mamba", "full_attention"]}, "layer_types"),
    ],
)
def test_gemma3_refuses_what_is_not_implemented(change: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"model.gguf: {key}"):
        gemma3.Config.read(reader(GEMMA | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "128"}, "hidden_size is '128', expected an integer"),
        ({"hidden_size": True}, "hidden_size is True, expected an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected an integer from 1"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, expected an integer from 1 to 4"),
        (
            {"rms_norm_eps": float("nan")},
            "rms_norm_eps is nan, expected a number from 1e-30 to 0.1",
        ),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05, expected a number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a number"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\], expected an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type is 3, expected a string"),
        ({"rope_theta": 0.5}, "rope_theta is 0.5, expected a number from 1"),
    ],
)
def test_damaged_values_name_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"model.gguf: {message}"):
        llama.Config.read(reader(LLAMA | change))


def test_gemma3_layer_list_of_the_wrong_length() -> None:
    with pytest.raises(CheckpointError, match=r"layer_types is .*, expected a list of 3 strings"):
        gemma3.Config.read(reader(GEMMA | {"layer_types": ["full_attention"]}))
