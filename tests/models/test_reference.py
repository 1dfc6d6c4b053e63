"""The numpy oracle against the logits that transformers gives, and the model files with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reference import Reference, round_bf16, round_q8
from samovar.checkpoint import open_checkpoint
from samovar.errors import UnsupportedModel
from samovar.models.registry import build_program
from tiny_models import write_tiny

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("chunk", [0, 50])
@pytest.mark.parametrize("name", ["llama", "llama_untied", "gemma3"])
def test_reference_gives_the_logits_of_transformers(name: str, chunk: int) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    program = build_program(open_checkpoint(GOLDEN / f"{name}.gguf"))
    logits = Reference(program).run(golden["tokens"], rows=golden["rows"], chunk=chunk)
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)


def test_rounded_rows_stay_near_the_exact_ones(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", "llama", {"": "Q8_0"})
    program = build_program(open_checkpoint(path))
    exact = Reference(program).run(range(40))
    rounded = Reference(program, round_rows=True).run(range(40))
    error = np.abs(rounded - exact).max() / exact.std()
    assert 0 < error < 0.2


def test_rounding_of_rows() -> None:
    x = np.array([[127.0, 0.5, -1.5, 63.4] + [0.0] * 28 + [1e-42]], np.float32)
    assert round_q8(x)[0, :4].tolist() == [127.0, 0.0, -2.0, 63.0]
    assert round_q8(x)[0, 32] == 0.0  # 127 / max overflows
    assert round_bf16(np.array([1.00390625, 1.01171875], np.float32)).tolist() == [1.0, 1.015625]


def test_tensors_that_nobody_asked_for_are_refused(tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "odd.gguf", "llama", {"": "Q8_0"}, tensors={"blk.0.attn_sinks.weight": (8,)}
    )
    with pytest.raises(UnsupportedModel, match=r"llama does not use: blk.0.attn_sinks.weight"):
        build_program(open_checkpoint(path))
