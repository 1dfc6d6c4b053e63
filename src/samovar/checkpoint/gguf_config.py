"""GGUF metadata -> a config shaped like Hugging Face's config.json, and Hugging Face's names.

One `Layout` for each architecture. What llama.cpp derives by constants instead of storing it
(Gemma 3's layer pattern, its local RoPE base, its query scale) is filled in here. A key or tensor
that is not known could change the mathematics, so it is refused, not skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.checkpoint.gguf import GGUFFile
from samovar.checkpoint.gguf_fields import Fields, brief
from samovar.errors import CheckpointError, UnsupportedModel

Config: TypeAlias = dict[str, Any]

# GGUF name -> (Hugging Face name, shape in terms of the config)
Names: TypeAlias = Mapping[str, tuple[str, tuple[str, ...]]]

ROPE_FACTORS = "rope_freqs.weight"

# Keys with a value that changes nothing, or that only describe the file.
_HARMLESS = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.finetuned": None,
    "rope.scaling.original_context_length": None,
    "tensor_data_layout": None,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How one GGUF architecture becomes one of Hugging Face's.

    keys: metadata keys that `read` understands.  top, layer: tensor names; those of a layer are
    below `blk.N.` here and `model.layers.N.` there.
    interleaved: q and k rows are stored for RoPE on pairs (2i, 2i+1).
    """

    read: Callable[[Fields, int], Config]
    keys: frozenset[str]
    top: Names
    layer: Names
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tensor's place in the file under its Hugging Face name."""

    gguf_name: str
    rope_heads: int  # heads whose rows must be put in half-split order; 0 if they are so already


def read_layout(file: GGUFFile) -> tuple[Config, dict[str, Renamed]]:
    """The config, and every tensor by its Hugging Face name, shapes checked against the config.

    Tensors that the architecture does not know keep their own name.
    """
    fields = Fields(file.path, file.metadata)
    architecture = fields.text("general.architecture")
    layout = _LAYOUTS.get(architecture)
    if layout is None:
        raise UnsupportedModel(
            f"{file.path}: general.architecture: {brief(architecture)} is not supported; "
            f"this version runs {', '.join(_LAYOUTS)}"
        )
    below = fields.under(f"{architecture}.")
    for key in below.keys():  # noqa: SIM118
        neutral = _HARMLESS.get(key, ())
        if key in layout.keys or neutral is None or below.get(key) in neutral:
            continue
        raise UnsupportedModel(
            f"{file.path}: {architecture}.{key}: {brief(below.get(key))} is not supported"
        )
    config = layout.read(below, _vocab_size(file, below))
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for name in ("bos", "eos", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        known = fields.has(key)
        config[f"{name[:3]}_token_id"] = fields.integer(key, 0, 2**31 - 1) if known else None
    if ROPE_FACTORS in file.tensors:
        config["rope_scaling"] = _llama3_scaling(file, config)
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if config["model_type"] == "llama":
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    return config, _rename(file, layout, config)


def _vocab_size(file: GGUFFile, below: Fields) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: token_embd.weight: no such matrix in the file")
    rows = embedding.shape[0]
    if not 1 <= rows <= 1 << 22:
        raise CheckpointError(f"{file.path}: token_embd.weight: has {rows} rows")
    if below.integer("vocab_size", 1, 1 << 22, rows) != rows:
        raise below.error(
            "vocab_size", f"found {below.get('vocab_size')}, but token_embd.weight has {rows} rows"
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and (not isinstance(tokens, list) or len(tokens) != rows):
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.tokens: found {brief(tokens)}, "
            f"but token_embd.weight has {rows} rows"
        )
    return rows


_DECODER_KEYS = frozenset(
    {
        "vocab_size",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
    }
)


def _read_decoder(fields: Fields, vocab_size: int) -> Config:
    """What all dense decoders share."""
    hidden = fields.integer("embedding_length", 1, 1 << 17)
    heads = fields.layers_integer("attention.head_count", 1, 1 << 10)
    kv_heads = fields.layers_integer("attention.head_count_kv", 1, 1 << 10, heads)
    if heads % kv_heads:
        raise fields.error("attention.head_count", f"{heads} is no multiple of {kv_heads} KV heads")
    if not fields.has("attention.key_length") and hidden % heads:
        raise fields.error("embedding_length", f"{hidden} is no multiple of {heads} heads")
    head_dim = fields.integer("attention.key_length", 2, 1024, hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, 1, 1024, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{fields.path}: {fields.prefix}{key}: found {fields.get(key)}; "
                f"only the size of a head, {head_dim}, is supported"
            )
    if head_dim % 2:
        raise fields.error(
            "attention.key_length", f"a head of {head_dim} dimensions, an odd number"
        )
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": fields.layers_integer("feed_forward_length", 1, 1 << 20),
        "num_hidden_layers": fields.integer("block_count", 1, 1 << 10),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer("context_length", 1, 1 << 26),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-12, 0.1),
        "rope_theta": fields.number("rope.freq_base", 1.0, 1e12, 10000.0),
        "rope_scaling": _rope_scaling(fields),
    }


def _rope_scaling(fields: Fields) -> Config | None:
    has_factor = fields.has("rope.scaling.factor")
    kind = fields.text("rope.scaling.type", "linear" if has_factor else "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(
            f"{fields.path}: {fields.prefix}rope.scaling.type: {brief(kind)} is not supported, "
            "only none and linear"
        )
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.number("rope.scaling.factor", 1.0, 1e4)}
    if has_factor and fields.number("rope.scaling.factor", 1.0, 1e4) != 1:
        raise fields.error(
            "rope.scaling.factor",
            f"found {fields.get('rope.scaling.factor')}, but rope.scaling.type is none",
        )
    return None


def _read_llama(fields: Fields, vocab_size: int) -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **_read_decoder(fields, vocab_size),
    }


_GEMMA3_KEYS = _DECODER_KEYS | {
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
    "attn_logit_softcapping",
    "final_logit_softcapping",
}


def _read_gemma3(fields: Fields, vocab_size: int) -> Config:
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        **_read_decoder(fields, vocab_size),
    }
    config["sliding_window"] = fields.integer("attention.sliding_window", 1, 1 << 26)
    # Files seldom say what follows; it is the same for every Gemma 3.
    config["rope_local_base_freq"] = fields.number("rope.freq_base_swa", 1.0, 1e12, 10000.0)
    period = fields.integer("attention.sliding_window_pattern", 1, 1 << 10, 6)
    config["layer_types"] = [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention"
        for layer in range(config["num_hidden_layers"])
    ]
    # The 27B, the only one of 62 layers, scales queries by the hidden size of a head, not its own.
    is_27b = config["num_hidden_layers"] == 62
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    )
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        value = fields.number(key, 0.0, 1e6, 0.0)
        config[key] = value or None
    return config


def _llama3_scaling(file: GGUFFile, config: Config) -> Config:
    """Llama 3's rope_scaling, recovered from the factors that a file stores in its place.

    A factor divides the frequency of one pair of dimensions: 1 for wavelengths below
    original / high_freq_factor, `factor` above original / low_freq_factor, smooth between.
    """
    tensor = file.tensors[ROPE_FACTORS]
    half = config["head_dim"] // 2
    if tensor.shape != (half,) or tensor.format.name != "F32":
        raise CheckpointError(
            f"{file.path}: {ROPE_FACTORS}: found {list(tensor.shape)} {tensor.format.name}, "
            f"expected [{half}] F32"
        )
    stored = tensor.format.dequantize(file.data(tensor))
    factor = float(stored.max())
    scaling: Config = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if (
        config["rope_scaling"] is not None
        or not 1 <= factor <= 1e4
        or not np.allclose(
            stored,
            _llama3_factors(config["rope_theta"], config["head_dim"], scaling),
            rtol=1e-5,
            atol=0,
        )
    ):
        raise UnsupportedModel(
            f"{file.path}: {ROPE_FACTORS}: these RoPE factors are not those of Llama 3"
        )
    return scaling


def _llama3_factors(theta: float, head_dim: int, scaling: Config) -> NDArray[np.float64]:
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: NDArray[np.float64] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors


_TOP: Names = {
    "token_embd.weight": ("model.embed_tokens.weight", ("vocab", "hidden")),
    "output_norm.weight": ("model.norm.weight", ("hidden",)),
    "output.weight": ("lm_head.weight", ("vocab", "hidden")),
}

_LAYER: Names = {
    "attn_norm.weight": ("input_layernorm.weight", ("hidden",)),
    "attn_q.weight": ("self_attn.q_proj.weight", ("q", "hidden")),
    "attn_k.weight": ("self_attn.k_proj.weight", ("kv", "hidden")),
    "attn_v.weight": ("self_attn.v_proj.weight", ("kv", "hidden")),
    "attn_output.weight": ("self_attn.o_proj.weight", ("hidden", "q")),
    "ffn_gate.weight": ("mlp.gate_proj.weight", ("inner", "hidden")),
    "ffn_up.weight": ("mlp.up_proj.weight", ("inner", "hidden")),
    "ffn_down.weight": ("mlp.down_proj.weight", ("hidden", "inner")),
}

_LAYOUTS: Mapping[str, Layout] = {
    "llama": Layout(
        read=_read_llama,
        keys=_DECODER_KEYS,
        top=_TOP,
        layer={
            **_LAYER,
            "ffn_norm.weight": ("post_attention_layernorm.weight", ("hidden",)),
            "attn_q.bias": ("self_attn.q_proj.bias", ("q",)),
            "attn_k.bias": ("self_attn.k_proj.bias", ("kv",)),
            "attn_v.bias": ("self_attn.v_proj.bias", ("kv",)),
            "attn_output.bias": ("self_attn.o_proj.bias", ("hidden",)),
            "ffn_gate.bias": ("mlp.gate_proj.bias", ("inner",)),
            "ffn_up.bias": ("mlp.up_proj.bias", ("inner",)),
            "ffn_down.bias": ("mlp.down_proj.bias", ("hidden",)),
        },
        interleaved=True,
    ),
    "gemma3": Layout(
        read=_read_gemma3,
        keys=_GEMMA3_KEYS,
        top=_TOP,
        layer={
            **_LAYER,
            "attn_q_norm.weight": ("self_attn.q_norm.weight", ("head",)),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", ("head",)),
            "post_attention_norm.weight": ("post_attention_layernorm.weight", ("hidden",)),
            "ffn_norm.weight": ("pre_feedforward_layernorm.weight", ("hidden",)),
            "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", ("hidden",)),
        },
        interleaved=False,
    ),
}

_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.(.+)")


def _rename(file: GGUFFile, layout: Layout, config: Config) -> dict[str, Renamed]:
    heads, kv_heads, head_dim = (
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )
    sizes = {
        "vocab": config["vocab_size"],
        "hidden": config["hidden_size"],
        "inner": config["intermediate_size"],
        "q": heads * head_dim,
        "kv": kv_heads * head_dim,
        "head": head_dim,
    }
    rope_heads = {"attn_q": heads, "attn_k": kv_heads} if layout.interleaved else {}
    renamed: dict[str, Renamed] = {}
    for name, tensor in file.tensors.items():
        match = _LAYER_NAME.fullmatch(name)
        layer = int(match[1]) if match else 0
        own = match[2] if match else name
        entry = (layout.layer if match else layout.top).get(own)
        if entry is None:
            if name.startswith(("model.", "lm_head.")):  # could pass for a checked one
                raise CheckpointError(f"{file.path}: {name}: not a tensor name of GGUF")
            renamed[name] = Renamed(name, 0)
            continue
        if layer >= config["num_hidden_layers"]:
            raise CheckpointError(
                f"{file.path}: {name}: the file declares {config['num_hidden_layers']} layers"
            )
        expected = tuple(sizes[size] for size in entry[1])
        if tensor.shape != expected:
            raise CheckpointError(
                f"{file.path}: {name}: has the shape {list(tensor.shape)}, "
                f"expected {list(expected)}"
            )
        new_name = f"model.layers.{layer}.{entry[0]}" if match else entry[0]
        renamed[new_name] = Renamed(name, rope_heads.get(own.split(".")[0], 0))
    return renamed
