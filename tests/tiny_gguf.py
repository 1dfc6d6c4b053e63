"""Tiny GGUF models for tests: random weights, a byte-level vocabulary, every part in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from gguf_writer import GGUFWriter, Typed, random_blocks

VOCAB = 64
HIDDEN = 64
INNER = 96
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16


def bpe_vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary of VOCAB tokens: letters, some merges, three control tokens."""
    letters = [chr(code) for code in range(ord("!"), ord("!") + VOCAB - 5)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|a|>", "<|b|>", "<|c|>", *letters, "AB", "ABC"],
        "tokenizer.ggml.token_type": Typed("i32", [3] * 3 + [1] * (VOCAB - 3)),
        "tokenizer.ggml.merges": ["A B", "AB C"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def spm_vocabulary() -> dict[str, Any]:
    """A SentencePiece vocabulary of VOCAB tokens."""
    pieces = [f"▁{n}" for n in range(VOCAB - 3)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *pieces],
        "tokenizer.ggml.scores": [-float(n) for n in range(VOCAB)],
        "tokenizer.ggml.token_type": Typed("i32", [2, 3, 3] + [1] * (VOCAB - 3)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def decoder_keys(architecture: str) -> dict[str, Any]:
    """The metadata that both architectures share."""
    own = {
        "context_length": 512,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in own.items()},
    }


def llama(kind: str = "Q4_1", **changes: Any) -> GGUFWriter:
    """A llama model whose matrices are stored as `kind`; `changes` replace metadata (None drops).

    A key's dots are written as two underscores: llama__block_count=3.
    """
    metadata = {**decoder_keys("llama"), "llama.rope.freq_base": 5e5, **bpe_vocabulary()}
    writer = GGUFWriter(_changed(metadata, changes))
    rng = np.random.default_rng(1)
    _top(writer, kind, rng)
    for layer in range(LAYERS):
        _layer(writer, layer, kind, rng, HEAD_DIM, ("attn_norm", "ffn_norm"))
    return writer


def gemma3(kind: str = "Q5_0", **changes: Any) -> GGUFWriter:
    """A gemma3 model, like `llama`; its heads are 32 wide."""
    metadata = {
        **decoder_keys("gemma3"),
        "gemma3.attention.key_length": 2 * HEAD_DIM,
        "gemma3.attention.value_length": 2 * HEAD_DIM,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.attention.sliding_window": 32,
        **spm_vocabulary(),
    }
    writer = GGUFWriter(_changed(metadata, changes))
    rng = np.random.default_rng(2)
    _top(writer, kind, rng)
    norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    for layer in range(LAYERS):
        _layer(writer, layer, kind, rng, 2 * HEAD_DIM, norms)
        for name in ("attn_q_norm", "attn_k_norm"):
            _norm(writer, f"blk.{layer}.{name}.weight", 2 * HEAD_DIM, rng)
    return writer


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**metadata, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _matrix(
    writer: GGUFWriter, name: str, kind: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    writer.tensor(name, kind, shape, random_blocks(kind, shape, rng, scale=0.1))


def _norm(writer: GGUFWriter, name: str, size: int, rng: np.random.Generator) -> None:
    weight = (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)
    writer.tensor(name, "F32", (size,), weight.tobytes())


def _top(writer: GGUFWriter, kind: str, rng: np.random.Generator) -> None:
    _matrix(writer, "token_embd.weight", kind, (VOCAB, HIDDEN), rng)
    _norm(writer, "output_norm.weight", HIDDEN, rng)


def _layer(
    writer: GGUFWriter,
    layer: int,
    kind: str,
    rng: np.random.Generator,
    head_dim: int,
    norms: tuple[str, ...],
) -> None:
    matrices = {
        "attn_q": (HEADS * head_dim, HIDDEN),
        "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN),
        "attn_output": (HIDDEN, HEADS * head_dim),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    for name, shape in matrices.items():
        _matrix(writer, f"blk.{layer}.{name}.weight", kind, shape, rng)
    for name in norms:
        _norm(writer, f"blk.{layer}.{name}.weight", HIDDEN, rng)
