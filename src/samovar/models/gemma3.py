"""Gemma 3, text only: norms around each block, sliding-window layers, two RoPE bases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from samovar.models.builder import Builder
from samovar.models.config import ConfigReader
from samovar.models.program import Value
from samovar.models.rope import Rope


@dataclass(frozen=True, slots=True)
class Config:
    """Fields named as in config.json; windows and ropes are one for each layer.

    windows: positions that a layer sees, 0 for all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    query_pre_attn_scalar: float
    tie_word_embeddings: bool
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]

    @classmethod
    def read(cls, c: ConfigReader) -> Self:
        c.require("hidden_activation", "gelu_pytorch_tanh")
        c.require("attention_bias", False)
        c.require("attn_logit_softcapping")
        c.require("final_logit_softcapping")
        c.require("use_bidirectional_attention", False)
        hidden_size = c.int("hidden_size")
        heads, kv_heads, head_dim = c.heads(hidden_size, head_dim=256)
        sliding = _sliding_layers(c)
        window = c.int("sliding_window", 4096)
        local, full = _ropes(c, head_dim)
        return cls(
            vocab_size=c.int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=c.int("intermediate_size"),
            num_hidden_layers=len(sliding),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=c.float("rms_norm_eps", 1e-6, maximum=0.1),
            query_pre_attn_scalar=c.float("query_pre_attn_scalar", 256.0, minimum=1.0),
            tie_word_embeddings=c.bool("tie_word_embeddings", True),
            windows=tuple(window if s else 0 for s in sliding),
            ropes=tuple(local if s else full for s in sliding),
        )


def _sliding_layers(c: ConfigReader) -> tuple[bool, ...]:
    """For each layer, whether it sees only a window: as listed, or all but each n-th."""
    layers = c.int("num_hidden_layers", maximum=1024)
    if c.has("layer_types"):
        types = c.choices("layer_types", ("sliding_attention", "full_attention"), count=layers)
        return tuple(type == "sliding_attention" for type in types)
    pattern = c.int("sliding_window_pattern", 6)
    return tuple((layer + 1) % pattern != 0 for layer in range(layers))


def _ropes(c: ConfigReader, dim: int) -> tuple[Rope, Rope]:
    """The rotations of sliding-window layers (scaled in no known model) and of full ones."""
    parameters = c.section("rope_parameters")
    if parameters is None:
        local = Rope(c.float("rope_local_base_freq", 1e4, minimum=1.0), dim)
        return local, Rope.read(c, dim, theta=1e6)
    sliding, full = parameters.section("sliding_attention"), parameters.section("full_attention")
    return Rope.of(sliding, dim, theta=1e4), Rope.of(full, dim, theta=1e6)


def build(b: Builder, c: Config) -> Value:
    """Appends the model's operations; returns the logits."""
    with b.scope("model"):
        x = b.embedding(
            "embed_tokens.weight",
            c.vocab_size,
            c.hidden_size,
            scale=_embedding_scale(c.hidden_size, b.format("embed_tokens.weight")),
        )
        for layer in range(c.num_hidden_layers):
            with b.scope(f"layers.{layer}"):
                x = attention(b, c, layer, x)
                if layer == c.num_hidden_layers - 1:
                    x = b.take_logit_rows(x)
                x = mlp(b, c, x)
        x = b.rms_norm(x, "norm.weight", c.rms_norm_eps)
    head = "model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"
    return b.linear(x, head, c.vocab_size)


def attention(b: Builder, c: Config, layer: int, x: Value) -> Value:
    heads, kv_heads, dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    h = b.rms_norm(x, "input_layernorm.weight", c.rms_norm_eps)
    with b.scope("self_attn"):
        qkv = b.linear(
            h,
            ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
            (heads * dim, kv_heads * dim, kv_heads * dim),
        )
        qkv = b.qk_norm(
            qkv, ("q_norm.weight", "k_norm.weight"), heads, kv_heads, dim, c.rms_norm_eps
        )
        qkv = b.rope(qkv, heads + kv_heads, dim, c.ropes[layer])
        scale = 1 / math.sqrt(c.query_pre_attn_scalar)
        out = b.attention(qkv, layer, heads, kv_heads, dim, scale=scale, window=c.windows[layer])
        h = b.linear(out, "o_proj.weight", c.hidden_size)
    return b.rms_norm(h, "post_attention_layernorm.weight", c.rms_norm_eps, add=x)


def mlp(b: Builder, c: Config, x: Value) -> Value:
    h = b.rms_norm(x, "pre_feedforward_layernorm.weight", c.rms_norm_eps)
    with b.scope("mlp"):
        h = b.gated_linear(
            h, ("gate_proj.weight", "up_proj.weight"), c.intermediate_size, "gelu_tanh"
        )
        h = b.linear(h, "down_proj.weight", c.hidden_size)
    return b.rms_norm(h, "post_feedforward_layernorm.weight", c.rms_norm_eps, add=x)


def _embedding_scale(hidden_size: int, format: str) -> float:
    """sqrt(hidden_size) rounded as the original does it: to the data type of the table."""
    scale = np.float32(math.sqrt(hidden_size))
    if format == "F16":
        return float(np.float16(scale))
    if format == "BF16":
        mantissa, exponent = math.frexp(scale)  # bf16 has 8 bits, round() is half to even
        return math.ldexp(round(math.ldexp(mantissa, 8)), exponent - 8)
    return float(scale)
