"""The builder: values, fusion of rounded rows, shape checks, source lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.checkpoint import open_checkpoint
from samovar.errors import CheckpointError, MissingTensor
from samovar.models.builder import Builder
from samovar.models.program import Matrix, Op, Program, ProgramError, Rows, Value
from samovar.models.rope import Rope
from tiny_models import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, VOCAB, write_tiny

MIXED = {"": "Q4_0", "attn_k": "BF16", "attn_v": "F16", "ffn_down": "BF16"}
QKV_WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "mixed.gguf", "llama", MIXED)


@pytest.fixture
def builder(path: Path) -> Builder:
    return Builder(open_checkpoint(path))


def embed(b: Builder) -> Value:
    return b.embedding("model.embed_tokens.weight", VOCAB, HIDDEN)


def qkv_of(b: Builder, x: Value) -> Value:
    with b.scope("model.layers.0.self_attn"):
        return b.linear(
            x,
            ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
            (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM),
        )


def finish(b: Builder, x: Value) -> Program:
    """Ends the program with the head, so that everything before it stays."""
    x = b.take_logit_rows(x) if x.rows is Rows.TOKENS else x
    return b.finish(b.linear(x, "model.embed_tokens.weight", VOCAB))


def ops_of(program: Program, kind: str) -> list[Op]:
    return [op for op in program.ops if op.kind == kind]


def test_parts_with_different_inputs_become_column_ranges_of_one_result(builder: Builder) -> None:
    x = builder.rms_norm(embed(builder), "model.norm.weight", 1e-5)
    qkv = qkv_of(builder, x)
    linears = ops_of(finish(builder, x), "linear")[:3]
    assert [op.outs["out"] for op in linears] == [qkv, qkv, qkv]
    assert [op.attrs["out_col"] for op in linears] == [0, 512, 640]
    assert [op.ins["x"].type for op in linears] == ["q8", "bf16", "f32"]
    assert qkv.cols == QKV_WIDTH


def test_the_producer_writes_the_rows_that_a_linear_reads(builder: Builder) -> None:
    x = builder.rms_norm(embed(builder), "model.norm.weight", 1e-5)
    qkv_of(builder, x)
    program = finish(builder, x)
    norm = ops_of(program, "rms_norm")[0]
    rounded = ops_of(program, "round_rows")[0]
    linears = ops_of(program, "linear")
    assert norm.outs["out_rows"] == linears[0].ins["x"]  # the first type asked for
    assert (rounded.ins["x"], rounded.outs["out"]) == (x, linears[1].ins["x"])


def test_a_result_is_rounded_once_for_all_its_readers(builder: Builder) -> None:
    x = builder.rms_norm(embed(builder), "model.norm.weight", 1e-5)
    with builder.scope("model.layers.0.mlp"):
        gate = builder.linear(x, "gate_proj.weight", INNER)
        up = builder.linear(x, "up_proj.weight", INNER, add=gate)
    program = finish(builder, builder.linear(up, "model.layers.0.mlp.down_proj.weight", HIDDEN))
    first, second = ops_of(program, "linear")[:2]
    assert first.ins["x"] == second.ins["x"]
    assert second.ins["add"] == gate


def test_an_f32_result_that_nobody_reads_is_dropped(builder: Builder) -> None:
    x = builder.rms_norm(embed(builder), "model.norm.weight", 1e-5)
    with builder.scope("model.layers.0.mlp"):
        h = builder.gated_linear(x, ("gate_proj.weight", "up_proj.weight"), INNER, "silu")
        h = builder.linear(h, "down_proj.weight", HIDDEN)
    program = finish(builder, h)
    assert ops_of(program, "rms_norm")[0].outs.keys() == {"out_rows"}
    assert ops_of(program, "gated_linear")[0].outs["out_rows"].type == "bf16"
    assert ops_of(program, "gated_linear")[0].outs.keys() == {"out_rows"}


@pytest.mark.parametrize(
    ("up", "inner", "kinds"),
    [
        ("Q4_0", INNER, ["gated_linear"]),
        ("Q8_0", INNER, ["linear", "gated"]),
        ("Q4_0", INNER - 32, ["linear", "gated"]),
    ],
)
def test_gate_and_up_are_one_operation_if_they_may_alternate(
    tmp_path: Path, up: str, inner: int, kinds: list[str]
) -> None:
    formats = {"": "Q4_0", "ffn_up": up}
    builder = Builder(
        open_checkpoint(write_tiny(tmp_path / "a.gguf", "llama", formats, inner=inner))
    )
    x = embed(builder)
    with builder.scope("model.layers.0.mlp"):
        h = builder.gated_linear(x, ("gate_proj.weight", "up_proj.weight"), inner, "silu")
        h = builder.linear(h, "down_proj.weight", HIDDEN)
    ops = finish(builder, h).ops
    assert [op.kind for op in ops if "gate" in str(op.weights) or op.kind == "gated"] == kinds
    assert h.cols == HIDDEN


def test_reading_a_value_that_was_changed_in_place_names_both_lines(builder: Builder) -> None:
    qkv = qkv_of(builder, embed(builder))
    builder.rope(qkv, HEADS + KV_HEADS, HEAD_DIM, Rope(1e4, HEAD_DIM))
    with pytest.raises(ProgramError) as caught:
        builder.attention(qkv, 0, HEADS, KV_HEADS, HEAD_DIM, scale=1.0)
    lines = {
        int(word.split(":")[1].rstrip(","))
        for word in str(caught.value).split()
        if "test_builder.py:" in word
    }
    assert len(lines) == 3, caught.value  # where it is read, was made, was changed


def test_in_place_operations_keep_the_buffer(builder: Builder) -> None:
    qkv = qkv_of(builder, embed(builder))
    rope = Rope(1e4, HEAD_DIM)
    turned = builder.rope(qkv, HEADS + KV_HEADS, HEAD_DIM, rope)
    again = builder.rope(turned, HEADS + KV_HEADS, HEAD_DIM, rope)
    assert qkv.buffer == turned.buffer == again.buffer
    assert qkv != turned != again


def test_rope_angles_are_shared_by_equal_rotations(builder: Builder) -> None:
    qkv = qkv_of(builder, embed(builder))
    for theta in (1e4, 1e6, 1e4):
        qkv = builder.rope(qkv, HEADS + KV_HEADS, HEAD_DIM, Rope(theta, HEAD_DIM))
    out = builder.attention(qkv, 0, HEADS, KV_HEADS, HEAD_DIM, scale=1.0)
    x = builder.linear(out, "model.layers.0.self_attn.o_proj.weight", HIDDEN)
    assert len(ops_of(finish(builder, x), "rope_angles")) == 2


def test_origin_is_the_line_of_the_model_file(builder: Builder) -> None:
    program = finish(builder, embed(builder))
    assert all(op.origin.startswith("test_builder.py:") for op in program.ops)


def test_a_tied_head_is_the_same_matrix_as_the_embedding(builder: Builder) -> None:
    program = finish(builder, embed(builder))
    assert list(program.matrices()) == [(("model.embed_tokens.weight",), False)]
    weights = [op.weights["weight"] for op in program.ops if "weight" in op.weights]
    assert all(isinstance(w, Matrix) and w.rows == VOCAB and w.cols == HIDDEN for w in weights)


def test_shapes_are_checked(builder: Builder) -> None:
    x = embed(builder)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \[256\].* \[255\]"):
        builder._vector("model.norm.weight", 255)
    with pytest.raises(
        CheckpointError, match=r"q_proj\.weight has shape \[512, 256\].*\[64, 256\]"
    ):
        builder.linear(x, "model.layers.0.self_attn.q_proj.weight", 64)
    with pytest.raises(MissingTensor, match=r"model\.layers\.9\.mlp\.up_proj\.weight"):
        builder.linear(x, "model.layers.9.mlp.up_proj.weight", 64)


def test_misuse_is_refused(builder: Builder) -> None:
    x = embed(builder)
    with pytest.raises(ProgramError, match="columns"):
        builder.attention(x, 0, HEADS, KV_HEADS, HEAD_DIM, scale=1.0)
    with pytest.raises(ProgramError, match="add is"):
        builder.linear(x, "model.layers.0.mlp.up_proj.weight", INNER, add=x)
    with pytest.raises(ProgramError, match="logit rows"):
        builder.finish(x)
    with pytest.raises(ProgramError, match="another builder"):
        builder.take_logit_rows(Value(99, 0, Rows.TOKENS, HIDDEN, "f32", "nowhere"))


def test_a_residual_reaches_every_part(builder: Builder) -> None:
    x = builder.rms_norm(embed(builder), "model.norm.weight", 1e-5)
    first = qkv_of(builder, x)
    with builder.scope("model.layers.1.self_attn"):
        names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
        widths = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
        second = builder.linear(x, names, widths, add=first)
    linears = ops_of(finish(builder, x), "linear")[3:6]
    assert [op.ins["add"] for op in linears] == [first] * 3
    assert [op.outs["out"] for op in linears] == [second] * 3
