"""Whole models in the native core: right, and the same bits however they are run."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reference import Reference
from samovar import _native as native
from samovar.checkpoint import open_checkpoint
from samovar.models import load_program
from samovar.models.plan import turns
from samovar.models.registry import build_program
from tiny_models import VOCAB, write_tiny

GOLDEN = Path(__file__).parent.parent / "golden"
BLOCK_TOKENS = 32
# Formats for matrices by GGUF name; q, k and v of one kind of input and of three.
MIXES = {
    "legacy": {
        "": "Q4_0",
        "attn_k": "Q5_1",
        "attn_v": "Q8_0",
        "ffn_down": "Q5_0",
        "ffn_up": "Q4_1",
    },
    "k_quants": {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_output": "Q5_K"},
    "three_inputs": {"": "Q8_0", "attn_k": "BF16", "attn_v": "F16", "ffn_down": "BF16"},
    "bf16": {"": "BF16"},
    "f16": {"": "F16"},
}


class Model:
    """A model file in the native core, with room for one sequence."""

    def __init__(
        self, path: Path, *, isa: str | None = None, threads: int = 1, kv: str = "f32"
    ) -> None:
        checkpoint = open_checkpoint(path)
        kernels, pool = native.Kernels(isa), native.Pool(threads)
        self.loaded = load_program(
            checkpoint,
            pool=pool,
            arena=native.Arena(),
            max_tokens=640,
            max_logit_rows=64,
            max_sequences=1,
        )
        cache = native.KvCache(
            layers=self.loaded.layers,
            kv_heads=self.loaded.kv_heads,
            head_dim=self.loaded.head_dim,
            num_blocks=20,
            dtype=kv,
        )
        self.runner = native.Runner(self.loaded.native, cache, kernels, pool)
        # Neighbours in the sequence are no neighbours in memory.
        self._blocks = np.arange(20, dtype=np.int32)[None, ::-1].copy()

    def run(
        self, tokens: NDArray[np.int32], *, rows: NDArray[np.int32], chunk: int = 0
    ) -> NDArray[np.float32]:
        """Logits at the positions `rows`, computing `chunk` tokens a step (0: all at once)."""
        found = []
        chunk = chunk or len(tokens)
        for start in range(0, len(tokens), chunk):
            end = min(start + chunk, len(tokens))
            wanted = rows[(rows >= start) & (rows < end)] - start
            bad = self.runner.run(
                tokens=tokens[start:end],
                positions=np.arange(start, end, dtype=np.int32),
                seq_start=np.array([0, end - start], np.int32),
                kv_len=np.array([end], np.int32),
                block_table=self._blocks,
                logit_rows=wanted,
            )
            assert len(bad) == 0
            found.append(self.runner.logits[: len(wanted)].copy())
        return np.concatenate(found)


def golden(name: str) -> Any:
    return np.load(GOLDEN / f"{name}.npz")


@pytest.mark.parametrize("name", ["llama", "llama_untied", "gemma3"])
def test_logits_are_those_of_transformers(name: str) -> None:
    expected = golden(name)
    model = Model(GOLDEN / f"{name}.gguf")
    logits = model.run(expected["tokens"], rows=expected["rows"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_bits_depend_on_nothing_but_the_model(name: str) -> None:
    """Every kernel table, number of threads and size of chunk gives the same logits."""
    inputs = golden(name)
    path = GOLDEN / f"{name}.gguf"
    whole = Model(path).run(inputs["tokens"], rows=inputs["rows"])
    runs = [(isa, 1, 0) for isa in native.available()]
    runs += [(None, threads, 7) for threads in (1, 2, 3)]
    runs += [(native.available()[-1], 2, 100), (None, 2, 1)]
    for isa, threads, chunk in runs:
        logits = Model(path, isa=isa, threads=threads).run(
            inputs["tokens"], rows=inputs["rows"], chunk=chunk
        )
        np.testing.assert_array_equal(logits, whole, err_msg=f"{isa}, {threads}, {chunk}")


@pytest.mark.parametrize("kv", ["bf16", "q8"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_small_kv_cache_gives_the_same_bits_everywhere(name: str, kv: str) -> None:
    inputs = golden(name)
    path = GOLDEN / f"{name}.gguf"
    whole = Model(path, kv=kv).run(inputs["tokens"], rows=inputs["rows"])
    error = whole - inputs["logits"]
    assert 0 < np.sqrt(np.mean(error**2)) < 0.05 * inputs["logits"].std()
    for isa in native.available():
        logits = Model(path, isa=isa, kv=kv).run(inputs["tokens"], rows=inputs["rows"], chunk=37)
        np.testing.assert_array_equal(logits, whole, err_msg=isa)


@pytest.mark.parametrize("mix", list(MIXES))
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_quantized_models_follow_the_reference(tmp_path: Path, architecture: str, mix: str) -> None:
    """Exact but for activations on the edge between two codes, which may fall to either side."""
    path = write_tiny(tmp_path / "tiny.gguf", architecture, MIXES[mix])
    reference = Reference(build_program(open_checkpoint(path)), round_rows=True)
    model = Model(path)
    rows = np.arange(3, dtype=np.int32)
    errors = []
    for i in range(20):
        tokens = np.array([i * 37, i * 53 + 7, i * 71 + 3], np.int32) % VOCAB
        expected = reference.run(tokens.tolist())
        difference = np.abs(model.run(tokens, rows=rows) - expected).max(axis=1)
        errors.append(difference / expected.std())
    assert np.max(errors) < 0.1
    assert np.mean(np.array(errors) < 2e-5) > 0.7


@pytest.mark.parametrize("mix", list(MIXES))
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_quantized_bits_are_those_of_every_table(
    tmp_path: Path, architecture: str, mix: str
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", architecture, MIXES[mix])
    tokens = np.arange(60, dtype=np.int32) * 37 % VOCAB
    rows = np.arange(60, dtype=np.int32)
    whole = Model(path).run(tokens, rows=rows)
    for isa in native.available():
        logits = Model(path, isa=isa, threads=2).run(tokens, rows=rows, chunk=7)
        np.testing.assert_array_equal(logits, whole, err_msg=isa)


def test_what_a_loaded_program_says_of_itself() -> None:
    loaded = Model(GOLDEN / "gemma3.gguf").loaded
    assert loaded.architecture == "gemma3_text"
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (7, 1, 32)
    assert (loaded.vocab_size, loaded.max_ctx) == (300, 2048)
    per_layer = 2 * 64 * 32 + 2 * 32 * 32 + 3 * 64 * 32 + 4 * 32 + 2 * 32
    assert loaded.num_parameters == 300 * 32 + 7 * per_layer + 32
    assert loaded.weight_bytes >= 4 * (loaded.num_parameters - 7 * 6 * 32)


def test_progress_ends_at_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    load_program(
        open_checkpoint(GOLDEN / "llama.gguf"),
        pool=native.Pool(1),
        arena=native.Arena(),
        max_tokens=8,
        max_logit_rows=1,
        max_sequences=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_what_the_planner_counts_as_one_moment_is_one_chain(name: str) -> None:
    path = GOLDEN / f"{name}.gguf"
    program = build_program(open_checkpoint(path))
    computed = [entry["origin"] for entry in Model(path).runner.profile()]
    planned = groupby(zip(turns(program), program.ops, strict=True), key=lambda each: each[0])
    assert computed == [", ".join(op.origin for _, op in chain) for _, chain in planned]
    assert len(computed) < len(program.ops)
