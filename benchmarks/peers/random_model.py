"""GGUF files with the dimensions of well-known models and random weights, to measure speed with.

    python benchmarks/peers/random_model.py DIRECTORY [--vocabulary smollm2] [NAME ...]

Tensor types are those that llama.cpp's quantizer chooses.  It keeps the embedding, which is the
output matrix too, in more bits than the rest: Q6_K in a Q4_0 file where rows are whole blocks of
256 (Llama 3.2 1B), else Q8_0 (Qwen2.5 0.5B, rows of 896).  Q4_K_M keeps some other matrices in
Q6_K, too.

The architecture is "llama" in all of them, so that every program runs the same file: the biases of
Qwen's q, k and v and Llama 3.2's factors of RoPE, which cost next to nothing, are left out.  The
vocabulary is that of a real model, padded with words that no text becomes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from place import bench_home, model_directory

from samovar import hub
from samovar.checkpoint.gguf import GGUFFile

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from gguf_writer import GGUFWriter, Typed, random_blocks

HEAD_DIM = 64
SEED = 20240917
NORMAL = 1  # the type of a token that is text
FILE_TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K": 15}


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model; the embedding is its output matrix too."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    rope_base: float
    norm_eps: float
    context: int


QWEN_0_5B = Shape(24, 896, 14, 2, 4864, 151936, 1e6, 1e-6, 32768)
LLAMA_1B = Shape(16, 2048, 32, 8, 8192, 128256, 5e5, 1e-5, 131072)

# name: dimensions, type of matrices, type of the embedding and of what has more bits, too
MODELS: Mapping[str, tuple[Shape, str, str]] = MappingProxyType(
    {
        "random-0.5b-q4_0": (QWEN_0_5B, "Q4_0", "Q8_0"),
        "random-0.5b-q8_0": (QWEN_0_5B, "Q8_0", "Q8_0"),
        "random-1b-q4_0": (LLAMA_1B, "Q4_0", "Q6_K"),
        "random-1b-q4_k_m": (LLAMA_1B, "Q4_K", "Q6_K"),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?", default=model_directory(bench_home()))
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument(
        "--vocabulary", default="smollm2", metavar="MODEL", help="a file or a name from the catalog"
    )
    args = parser.parse_args()
    for name in args.names:
        print(random_model(name, args.directory, hub.resolve(args.vocabulary).path))


def random_model(name: str, directory: Path, vocabulary: Path) -> Path:
    """The file of that name, which is made if it is not there."""
    path = directory / f"{name}.gguf"
    if path.exists():
        return path
    shape, kind, finer = MODELS[name]
    writer = GGUFWriter(
        {
            **_dimensions(shape),
            "general.name": name,
            "general.file_type": FILE_TYPES[kind],
            "general.quantization_version": 2,
            **_vocabulary(vocabulary, shape.vocab),
        }
    )
    rng = np.random.default_rng(SEED)
    for tensor, rows, columns in _tensors(shape):
        if rows is None:
            ones = np.ones(columns, np.float32)
            writer.tensor(tensor, "F32", (columns,), ones.tobytes())
        else:
            more_bits = tensor == "token_embd.weight" or (
                kind == "Q4_K" and _has_more_bits(tensor, shape.layers)
            )
            type_ = finer if more_bits else kind
            data = random_blocks(type_, (rows, columns), rng, scale=columns**-0.5)
            writer.tensor(tensor, type_, (rows, columns), data)
    directory.mkdir(parents=True, exist_ok=True)
    writer.write(path.with_suffix(".part")).rename(path)
    return path


def _has_more_bits(tensor: str, layers: int) -> bool:
    """Whether Q4_K_M keeps a matrix in Q6_K: values and `down` of half of the layers."""
    if not tensor.endswith(("attn_v.weight", "ffn_down.weight")):
        return False
    layer, eighth = int(tensor.split(".")[1]), layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _dimensions(shape: Shape) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": shape.norm_eps,
        "llama.rope.freq_base": shape.rope_base,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": shape.vocab,
    }


def _vocabulary(path: Path, size: int) -> dict[str, Any]:
    """The tokenizer of the file at `path`, with further tokens up to `size`."""
    known = GGUFFile(path).metadata
    tokens = known["tokenizer.ggml.tokens"]
    types = known["tokenizer.ggml.token_type"]
    if known["tokenizer.ggml.model"] != "gpt2" or not isinstance(tokens, list):
        sys.exit(f"{path}: the vocabulary must be one of byte-level BPE")
    padding = [f"\u0120pad{i}" for i in range(len(tokens), size)]  # U+0120 stands for a space
    kept = ("model", "pre", "merges", "bos_token_id", "eos_token_id", "add_bos_token")
    return {
        **{f"tokenizer.ggml.{key}": known[f"tokenizer.ggml.{key}"] for key in kept},
        "tokenizer.ggml.tokens": tokens + padding,
        "tokenizer.ggml.token_type": Typed(
            "i32", [int(kind) for kind in np.asarray(types)] + [NORMAL] * len(padding)
        ),
    }


def _tensors(shape: Shape) -> Iterator[tuple[str, int | None, int]]:
    """Name, rows (None for a vector) and columns of every tensor."""
    hidden, kv = shape.hidden, shape.kv_heads * HEAD_DIM
    yield "token_embd.weight", shape.vocab, hidden
    yield "output_norm.weight", None, hidden
    for layer in range(shape.layers):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", None, hidden
        yield name + "attn_q.weight", shape.heads * HEAD_DIM, hidden
        yield name + "attn_k.weight", kv, hidden
        yield name + "attn_v.weight", kv, hidden
        yield name + "attn_output.weight", hidden, shape.heads * HEAD_DIM
        yield name + "ffn_norm.weight", None, hidden
        yield name + "ffn_gate.weight", shape.inner, hidden
        yield name + "ffn_up.weight", shape.inner, hidden
        yield name + "ffn_down.weight", hidden, shape.inner


if __name__ == "__main__":
    main()
