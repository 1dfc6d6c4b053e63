"""Llama 2 and 3, Mistral, TinyLlama, SmolLM2: the plain dense decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from samovar.models.builder import Builder
from samovar.models.config import ConfigReader
from samovar.models.program import Value
from samovar.models.rope import Rope


@dataclass(frozen=True, slots=True)
class Config:
    """Fields named as in config.json; `rope` is read from rope_theta and rope_scaling."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    sliding_window: int
    attention_bias: bool
    mlp_bias: bool
    rope: Rope

    @classmethod
    def read(cls, c: ConfigReader) -> Self:
        c.require("hidden_act", "silu")
        hidden_size = c.int("hidden_size")
        heads, kv_heads, head_dim = c.heads(hidden_size)
        return cls(
            vocab_size=c.int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=c.int("intermediate_size"),
            num_hidden_layers=c.int("num_hidden_layers", maximum=1024),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=c.float("rms_norm_eps", maximum=0.1),
            tie_word_embeddings=c.bool("tie_word_embeddings", False),
            sliding_window=c.int("sliding_window", 0, minimum=0),
            attention_bias=c.bool("attention_bias", False),
            mlp_bias=c.bool("mlp_bias", False),
            rope=Rope.read(c, head_dim, theta=1e4),
        )


def build(b: Builder, c: Config) -> Value:
    """Appends the model's operations; returns the logits."""
    with b.scope("model"):
        x = b.embedding("embed_tokens.weight", c.vocab_size, c.hidden_size)
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
            bias=c.attention_bias,
        )
        qkv = b.rope(qkv, heads + kv_heads, dim, c.rope)
        out = b.attention(
            qkv, layer, heads, kv_heads, dim, scale=1 / math.sqrt(dim), window=c.sliding_window
        )
        return b.linear(out, "o_proj.weight", c.hidden_size, bias=c.attention_bias, add=x)


def mlp(b: Builder, c: Config, x: Value) -> Value:
    h = b.rms_norm(x, "post_attention_layernorm.weight", c.rms_norm_eps)
    with b.scope("mlp"):
        h = b.gated_linear(
            h,
            ("gate_proj.weight", "up_proj.weight"),
            c.intermediate_size,
            "silu",
            bias=c.mlp_bias,
        )
        return b.linear(h, "down_proj.weight", c.hidden_size, bias=c.mlp_bias, add=x)
