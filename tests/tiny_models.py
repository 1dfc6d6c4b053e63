"""Small random models of both families in any mix of weight formats, as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gguf_writer import GGUFWriter, random_blocks

VOCAB = 320
HIDDEN = 256  # the smallest that K-quants allow
INNER = 512
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
LAYERS = 2
WINDOW = 24

_Q, _KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


def _feed_forward(inner: int) -> dict[str, tuple[int, int]]:
    return {
        "ffn_gate": (inner, HIDDEN),
        "ffn_up": (inner, HIDDEN),
        "ffn_down": (HIDDEN, inner),
    }


_ATTENTION = {
    "attn_q": (_Q, HIDDEN),
    "attn_k": (_KV, HIDDEN),
    "attn_v": (_KV, HIDDEN),
    "attn_output": (HIDDEN, _Q),
}
_NORMS = {
    "llama": {"attn_norm": HIDDEN, "ffn_norm": HIDDEN},
    "gemma3": {
        "attn_norm": HIDDEN,
        "ffn_norm": HIDDEN,
        "post_attention_norm": HIDDEN,
        "post_ffw_norm": HIDDEN,
        "attn_q_norm": HEAD_DIM,
        "attn_k_norm": HEAD_DIM,
    },
}


def write_tiny(
    path: Path,
    architecture: str,
    formats: Mapping[str, str],
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    inner: int = INNER,
) -> Path:
    """Write a model whose matrices have the format that `formats` gives for their GGUF name.

    formats: by name without layer ("attn_q", "token_embd"); "" is for the others.
    metadata: more keys, below the architecture's prefix, or other values for them.
    inner: columns between the feed-forward matrices.
    tensors: shapes of further F32 tensors, or other shapes for norms, by full name.
    """
    a = architecture
    keys: dict[str, Any] = {
        "context_length": 1024,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": inner,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if a == "gemma3":
        # Of two layers the second sees everything.
        keys |= {
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 1000000.0,
        }
    keys |= metadata or {}
    writer = GGUFWriter(
        {"general.architecture": a} | {f"{a}.{key}": value for key, value in keys.items()}
    )
    rng = np.random.default_rng(7)

    def matrix(name: str, own: str, shape: tuple[int, ...]) -> None:
        kind = formats.get(own, formats[""])
        writer.tensor(name, kind, shape, random_blocks(kind, shape, rng, scale=shape[1] ** -0.5))

    shapes: dict[str, tuple[int, ...]] = {"output_norm.weight": (HIDDEN,)}
    matrix("token_embd.weight", "token_embd", (VOCAB, HIDDEN))
    for layer in range(LAYERS):
        for own, shape in (_ATTENTION | _feed_forward(inner)).items():
            matrix(f"blk.{layer}.{own}.weight", own, shape)
        shapes |= {f"blk.{layer}.{own}.weight": (n,) for own, n in _NORMS[a].items()}
    for name, shape in (shapes | dict(tensors or {})).items():
        values = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        writer.tensor(name, "F32", shape, values.tobytes())
    return writer.write(path)
