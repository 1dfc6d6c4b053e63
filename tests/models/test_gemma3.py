"""What is particular to Gemma 3: scaled embeddings, windows, two rotations."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.checkpoint import open_checkpoint
from samovar.models.gemma3 import _embedding_scale
from samovar.models.program import Op
from samovar.models.registry import build_program
from tiny_models import WINDOW, write_tiny

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(
    ("format", "scale"),
    # The square root of 640 is 25.29822...
    [
        ("F32", 25.298221588134766),
        ("Q8_0", 25.298221588134766),
        ("F16", 25.296875),
        ("BF16", 25.25),
    ],
)
def test_the_embedding_s_scale_is_rounded_to_the_type_of_the_table(
    format: str, scale: float
) -> None:
    assert _embedding_scale(640, format) == scale


def test_each_layer_has_its_window_and_its_rotation(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", "gemma3", {"": "Q8_0"})
    program = build_program(open_checkpoint(path))

    def of(kind: str) -> list[Op]:
        return [op for op in program.ops if op.kind == kind]

    assert [op.attrs["window"] for op in of("attention")] == [WINDOW, 0]
    local, full = (op.outs["out"] for op in of("rope_angles"))
    assert [op.ins["angles"] for op in of("rope")] == [local, full]
