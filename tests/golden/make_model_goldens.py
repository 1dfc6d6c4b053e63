"""Makes the tiny models of both families and the logits that transformers gives for them.

    python tests/golden/make_model_goldens.py

Needs torch 2.13.0 and transformers 5.24.0 (the tests do not). For each model it writes NAME.gguf,
F32 with GGUF's conventions as llama.cpp's converter has them, and NAME.npz: tokens, and the
logits [len(rows), vocab] at the positions `rows`.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

GOLDEN = Path(__file__).parent
sys.path.insert(0, str(GOLDEN.parent))

from gguf_writer import GGUFWriter, Typed  # noqa: E402

VERSIONS = {"torch": "2.13.0+cpu", "transformers": "5.24.0"}
NUM_TOKENS = 600  # more than one 512-token chunk of context
ROWS = [*range(6), 31, 32, 33, 63, 64, 65, 300, 510, 511, 512, 513, 598, 599]
VOCAB = 300

# GGUF's name for each tensor of Hugging Face; those of a layer follow "blk.N.".
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
# The same name means another norm in each family.
LLAMA_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

MERGES = (
    "Ġ t|h e|Ġ a|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|"
    "Ġ f|in g|Ġ p|o u|Ġa n|a l|a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|Ġan d|i c|a s|l e|Ġt h|i on|o m"
)

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def main() -> None:
    for package, version in VERSIONS.items():
        found = importlib.metadata.version(package)
        if found != version:
            sys.exit(f"{package} {version} is needed, found {found}")
    torch.set_num_threads(1)
    small = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "head_dim": 32}
    make_llama(
        "llama",
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=96,
            head_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            max_position_embeddings=2048,
        ),
    )
    make_llama(
        "llama_untied",
        LlamaConfig(
            **small,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            tie_word_embeddings=False,
            rms_norm_eps=1e-6,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=LLAMA3_SCALING,
            max_position_embeddings=16384,
        ),
    )
    make_gemma3(
        "gemma3",
        Gemma3TextConfig(
            **small,
            num_hidden_layers=7,  # layer 5 sees everything, the others a window
            num_attention_heads=2,
            num_key_value_heads=1,
            query_pre_attn_scalar=32,
            sliding_window=40,
            max_position_embeddings=2048,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            },
        ),
    )


def make_llama(name: str, config: LlamaConfig) -> None:
    model = LlamaForCausalLM(config)
    writer = GGUFWriter(
        metadata("llama", config)
        | {
            "llama.vocab_size": VOCAB,
            "llama.rope.dimension_count": config.head_dim,
            "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        }
        | byte_level_vocabulary()
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for hf_name, gguf_name, array in tensors(model, seed=1, norms=LLAMA_NORMS):
        for projection, count in heads.items():
            if projection in hf_name:
                array = interleave(array, count)
        writer.tensor(gguf_name, "F32", array.shape, array.tobytes())
    if config.rope_parameters["rope_type"] == "llama3":
        factors = np.array(list(rope_factors(config)), np.float32)
        writer.tensor("rope_freqs.weight", "F32", factors.shape, factors.tobytes())
    writer.write(GOLDEN / f"{name}.gguf")
    write_logits(name, model, inv_freq=model.model.rotary_emb.inv_freq.numpy())


def make_gemma3(name: str, config: Gemma3TextConfig) -> None:
    model = Gemma3ForCausalLM(config)
    writer = GGUFWriter(
        metadata("gemma3", config)
        | {
            "gemma3.rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
            "gemma3.attention.sliding_window": config.sliding_window,
        }
        | sentencepiece_vocabulary()
    )
    for hf_name, gguf_name, array in tensors(model, seed=2, norms=GEMMA_NORMS, norm_mean=0.0):
        if "norm" in hf_name:
            array = array + np.float32(1)
        writer.tensor(gguf_name, "F32", array.shape, array.tobytes())
    writer.write(GOLDEN / f"{name}.gguf")
    write_logits(name, model)


def tensors(
    model: torch.nn.Module, *, seed: int, norms: dict[str, str], norm_mean: float = 1.0
) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    """Give every parameter random values of a useful size; yields both names and the values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            values = 0.2 * noise
        elif parameter.dim() == 1:
            values = norm_mean + 0.2 * noise
        else:
            values = noise / math.sqrt(parameter.shape[1]) * 1.2
        parameter.data.copy_(values)
        yield name, gguf_name(name, norms), parameter.detach().numpy()


def gguf_name(name: str, norms: dict[str, str]) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(LAYER_NAMES | norms)[stem]}.{kind}"


def interleave(array: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head from half-split to interleaved pairs, as GGUF files of Llama have them."""
    pairs = array.reshape(heads, 2, len(array) // heads // 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(pairs).reshape(array.shape)


def rope_factors(config: LlamaConfig) -> Iterator[float]:
    """What each frequency is divided by: GGUF's way to state the scaling of Llama 3."""
    p = config.rope_parameters
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * p["rope_theta"] ** (i / config.head_dim)
        turns = p["original_max_position_embeddings"] / wavelength
        keep = (turns - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
        keep = min(max(keep, 0.0), 1.0)
        yield 1 / ((1 - keep) / p["factor"] + keep)


def metadata(architecture: str, config: Any) -> dict[str, Any]:
    a = architecture
    return {
        "general.architecture": a,
        "general.name": f"tiny random {a}",
        f"{a}.context_length": config.max_position_embeddings,
        f"{a}.embedding_length": config.hidden_size,
        f"{a}.block_count": config.num_hidden_layers,
        f"{a}.feed_forward_length": config.intermediate_size,
        f"{a}.attention.head_count": config.num_attention_heads,
        f"{a}.attention.head_count_kv": config.num_key_value_heads,
        f"{a}.attention.key_length": config.head_dim,
        f"{a}.attention.value_length": config.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }


def byte_level_vocabulary() -> dict[str, Any]:
    """256 bytes, 41 merges of common English, three control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    merges = MERGES.split("|")
    tokens = letters + [merge.replace(" ", "") for merge in merges]
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(tokens) == len(set(tokens)) == VOCAB
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", [1] * (VOCAB - 3) + [3] * 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": VOCAB - 3,
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def sentencepiece_vocabulary() -> dict[str, Any]:
    """Four control tokens, 256 bytes, 40 pieces."""
    pieces = ["▁", *"etaoinshrdlcumwfgypbvk", "▁t", "th", "▁th", "he", "▁the", "▁a", "in", "er"]
    pieces += ["an", "▁s", "on", "re", "▁w", "at", "ou", ".", ","]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
    assert len(tokens) == len(set(tokens)) == VOCAB
    scores = [0.0] * 260 + [-float(i) for i in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": Typed("i32", [3, 3, 3, 2] + [6] * 256 + [1] * len(pieces)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def write_logits(name: str, model: torch.nn.Module, **more: NDArray[Any]) -> None:
    tokens = torch.randint(0, VOCAB, (NUM_TOKENS,), generator=torch.Generator().manual_seed(3))
    model.eval()
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, ROWS]
    np.savez(
        GOLDEN / f"{name}.npz",
        tokens=tokens.numpy().astype(np.int32),
        rows=np.array(ROWS, np.int32),
        logits=logits.numpy(),
        **more,
    )


if __name__ == "__main__":
    main()
