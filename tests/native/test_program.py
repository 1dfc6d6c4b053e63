"""Building programs: each operation checks its operands and names the model's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native_programs import Bench, random_blocks, run, small_cache
from samovar import _native as native


class Buffers(Bench):
    """A program with a buffer of each kind: written f32, q8, logits; fresh ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = np.ones((10, 96), np.float32)
        self.x = self.embedding(self.table)
        self.ids = {
            "x": self.x,
            "fresh": self.buffer(96),
            "narrow": self.buffer(32),
            "q8": self.buffer(96, "q8"),
            "bf16": self.buffer(96, "bf16"),
            "logits": self.buffer(96, rows="logits"),
            "none": 999,
        }
        self.weights = {
            "plain": self.pack(np.ones((32, 96), np.float32)),
            "alternating": self.pack(*[np.ones((64, 96), np.float32)] * 2, alternate=True),
        }


VECTOR = np.ones(96, np.float32)
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("embedding", {"out": "q8"}, "out: expected f32 rows, got q8"),
    ("embedding", {"out": "narrow"}, "out: expected 96 columns, got 32"),
    ("embedding", {"out": "logits"}, 'out: expected rows "tokens"'),
    ("embedding", {"out": "none"}, "out: no buffer 999"),
    ("embedding", {"weight": "alternating"}, "weight: its parts alternate"),
    ("rms_norm", {"x": "fresh"}, "x: column 0 of buffer .* is read before it is written"),
    ("rms_norm", {"x": "none"}, "x: no buffer 999"),
    ("rms_norm", {"weight": VECTOR[:5]}, "weight: expected 96 values, got 5"),
    ("rms_norm", {"out": -1}, "neither out nor out_rows"),
    ("rms_norm", {"out": "narrow"}, "out: expected 96 columns, got 32"),
    ("rms_norm", {"out_rows": "fresh"}, "out_rows: expected q8 or bf16 rows, got f32"),
    ("rms_norm", {"add": "fresh"}, "add: column 0"),
    ("rms_norm", {"eps": float("nan")}, "eps: expected 0 to 1"),
    ("round_rows", {"out": "fresh"}, "out: expected q8 or bf16"),
    ("round_rows", {"x": "q8"}, "x: column 0"),
    ("linear", {"out": "q8"}, "out: expected f32 rows, got q8"),
    ("linear", {"out_col": 65}, "out: columns 65 to 97 do not fit into 96"),
    ("linear", {"out_col": -1}, "out: columns -1 to 31"),
    ("linear", {"bias": VECTOR}, "bias: expected 32 values, got 96"),
    ("linear", {"add": "narrow"}, "add: column 0"),
    ("linear", {"out": "x"}, "out shares memory with x"),
    ("linear", {"out": "logits"}, "one operand has a row for each token"),
    ("linear", {"weight": "alternating"}, "weight: its parts alternate"),
    ("gated_linear", {"weight": "plain"}, "weight: expected gate and up that alternate"),
    ("gated_linear", {"activation": "relu"}, "activation: expected silu or gelu_tanh, got relu"),
    ("gated_linear", {"bias": VECTOR}, "bias: expected 128 values, got 96"),
    ("gated_linear", {"x": "narrow"}, "x: column 0"),
    ("gated_linear", {"out": "narrow"}, "out: expected 64 columns, got 32"),
    ("gated_linear", {"out": "x"}, "out: expected 64 columns, got 96"),
    ("gated_linear", {"out": -1}, "neither out nor out_rows"),
    ("gated_linear", {"out_rows": "fresh"}, "out_rows: expected q8 or bf16 rows, got f32"),
    ("qk_norm", {"heads": 2}, "x: expected 128 columns, got 96"),
    ("qk_norm", {"q_weight": VECTOR}, "q_weight: expected 32 values, got 96"),
    ("qk_norm", {"kv_heads": 0}, "heads, kv_heads and head_dim must be at least 1"),
    ("rope_angles", {"out": "narrow"}, "out: expected 192 columns, got 32"),
    ("rope_angles", {"inv_freq": np.array([])}, "inv_freq: at least one"),
    ("rope_angles", {"inv_freq": np.array([np.inf])}, "inv_freq: inf is out of range"),
    ("rope", {"heads": 4}, "x: 4 heads of 32 do not fit into 96 columns"),
    ("rope", {"angles": "x"}, "angles: expected an even number of at most 32 columns, got 96"),
    ("attention", {"heads": 3, "kv_heads": 2}, "heads: expected a multiple of kv_heads"),
    ("attention", {"heads": 2}, "x: expected 128 columns, got 96"),
    ("attention", {"head_dim": 80}, "head_dim: expected a multiple of 32 up to 256, got 80"),
    ("attention", {"out": "fresh"}, "out: expected 32 columns, got 96"),
    ("attention", {"window": -1}, "window: expected at least 0"),
    ("attention", {"layer": -1}, "layer: expected at least 0"),
    ("attention", {"scale": 0.0}, "scale: out of range"),
    ("gated", {"activation": "relu"}, "activation: expected silu or gelu_tanh, got relu"),
    ("gated", {"out": "narrow"}, "out: expected 48 columns, got 32"),
    ("gated", {"out": -1}, "neither out nor out_rows"),
    ("take_logit_rows", {"out": "fresh"}, 'out: expected rows "logits"'),
]


def arguments(buffers: Buffers, kind: str) -> dict[str, Any]:
    """Arguments that are right, but for buffers named by their kind."""
    ids = buffers.ids
    good: dict[str, dict[str, Any]] = {
        "embedding": {"out": "fresh", "weight": buffers.pack(buffers.table), "scale": 1.0},
        "rms_norm": {"x": "x", "weight": VECTOR, "eps": 1e-5, "out": "fresh"},
        "round_rows": {"x": "x", "out": "q8"},
        "linear": {"x": "x", "weight": "plain", "out": "fresh"},
        "gated_linear": {
            "x": "x",
            "weight": "alternating",
            "activation": "silu",
            "out": buffers.buffer(64),
        },
        "qk_norm": {
            "x": "x",
            "q_weight": VECTOR[:32],
            "k_weight": VECTOR[:32],
            "heads": 1,
            "kv_heads": 1,
            "head_dim": 32,
            "eps": 1e-6,
        },
        "rope_angles": {"out": "fresh", "inv_freq": np.ones(96), "scale": 1.0},
        "rope": {"x": "x", "angles": "x", "heads": 3, "head_dim": 32},
        "attention": {
            "x": "x",
            "out": "narrow",
            "layer": 0,
            "heads": 1,
            "kv_heads": 1,
            "head_dim": 32,
            "scale": 1.0,
            "window": 0,
        },
        "gated": {"x": "x", "activation": "silu", "out": "fresh"},
        "take_logit_rows": {"x": "x", "out": "logits"},
    }
    assert ids
    return good[kind]


@pytest.mark.parametrize(("kind", "change", "message"), CASES)
def test_wrong_operands_are_refused(kind: str, change: dict[str, Any], message: str) -> None:
    buffers = Buffers()
    names = {**buffers.ids, **buffers.weights}
    values = {
        name: names.get(value, value) if isinstance(value, str) else value
        for name, value in (arguments(buffers, kind) | change).items()
    }
    with pytest.raises(ValueError, match=f"^model.py:7: {kind}: {message}"):
        getattr(buffers.program, f"add_{kind}")(**values, origin="model.py:7")


def test_a_vector_of_another_type_is_refused() -> None:
    buffers = Buffers()
    for wrong in (VECTOR.astype(np.float64), VECTOR[::2], list(VECTOR)):
        with pytest.raises(TypeError, match="weight: expected"):
            buffers.program.add_rms_norm(x=buffers.x, weight=wrong, eps=1e-5, origin="here")
    with pytest.raises(TypeError):
        buffers.program.add_linear(x=buffers.x, weight=None, out=buffers.x, origin="here")


def test_values_whose_memory_was_reused_cannot_be_read() -> None:
    bench = Bench()
    first = bench.embedding(np.ones((4, 32), np.float32))
    again = bench.program.buffer(offset=0, cols=32, type="f32", rows="tokens")
    weight = bench.pack(np.ones((4, 32), np.float32))
    bench.program.add_embedding(out=again, weight=weight, scale=1.0, origin="second")
    with pytest.raises(ValueError, match="after its memory was used for another"):
        bench.finish(first, 32)


def test_columns_that_nobody_wrote_cannot_be_read() -> None:
    bench = Bench()
    x, out = bench.embedding(np.ones((4, 32), np.float32)), bench.buffer(12)
    weight = bench.pack(np.ones((5, 32), np.float32))
    bench.program.add_linear(x=x, weight=weight, out=out, out_col=7, origin="half")
    with pytest.raises(ValueError, match="x: column 0 of buffer"):
        bench.finish(out, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 32}, "offset: expected a multiple of 64, got 32"),
        ({"offset": -64}, "offset: expected a multiple of 64, got -64"),
        ({"offset": 1 << 20}, "passes the end of buffer_bytes, 1048576"),
        ({"offset": (1 << 63) - 64}, "passes the end"),
        ({"cols": 0}, "cols: expected 1 to"),
        ({"cols": 1 << 24}, "passes the end"),
        ({"type": "f64"}, "type: expected f32, q8 or bf16, got f64"),
        ({"rows": "all"}, "rows: expected tokens or logits, got all"),
    ],
)
def test_wrong_buffers_are_refused(change: dict[str, Any], message: str) -> None:
    program = native.Program(max_tokens=8, max_logit_rows=4, max_sequences=2, buffer_bytes=1 << 20)
    buffer: dict[str, Any] = {"offset": 0, "cols": 32, "type": "f32", "rows": "tokens"}
    with pytest.raises(ValueError, match=message):
        program.buffer(**buffer | change)


@pytest.mark.parametrize("name", ["max_tokens", "max_logit_rows", "max_sequences", "buffer_bytes"])
def test_wrong_limits_are_refused(name: str) -> None:
    limits = {"max_tokens": 8, "max_logit_rows": 4, "max_sequences": 2, "buffer_bytes": 64}
    with pytest.raises(ValueError, match=f"{name}: "):
        native.Program(**limits | {name: -1})


def test_a_program_ends_with_its_logits() -> None:
    bench = Bench()
    x = bench.embedding(np.ones((4, 32), np.float32))
    with pytest.raises(ValueError, match="set_logits was not called"):
        native.Runner(bench.program, small_cache(), native.Kernels(), bench.pool)
    with pytest.raises(ValueError, match='set_logits: x: expected rows "logits"'):
        bench.program.set_logits(x=x)
    with pytest.raises(ValueError, match="set_logits: x: no buffer 99"):
        bench.program.set_logits(x=99)
    rows, part, normed = (bench.buffer(32, rows="logits") for _ in range(3))
    for last in (
        {"kind": "take_logit_rows", "x": x, "out": rows},  # of another buffer
        {"kind": "rms_norm", "x": rows, "weight": None, "eps": 1e-5, "out": normed},
        {
            "kind": "linear",
            "x": rows,
            "weight": bench.pack(np.eye(16, 32, dtype=np.float32)),
            "out": part,
        },
        {
            "kind": "linear",
            "x": rows,
            "weight": bench.pack(np.eye(16, 32, dtype=np.float32)),
            "out": part,
            "out_col": 16,
        },
    ):
        getattr(bench.program, f"add_{last.pop('kind')}")(**last, origin="last")
        for unchecked in (part, normed):
            with pytest.raises(ValueError, match="set_logits: x: expected what the last operation"):
                bench.program.set_logits(x=unchecked)
    runner = bench.finish(x, 32)
    with pytest.raises(ValueError, match="logits are set already"):
        bench.program.set_logits(x=x)
    with pytest.raises(ValueError, match="already belongs to a runner"):
        bench.buffer(32)
    with pytest.raises(ValueError, match=r"late: round_rows: .*already belongs to a runner"):
        bench.program.add_round_rows(x=x, out=x, origin="late")
    assert run(runner, [([1], 0, [0])]) == []


def test_kernels_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no kernels named mmx; available: .*portable"):
        native.Kernels("mmx")
    assert native.Kernels().name == native.available()[0]
    assert native.Kernels("portable").name == native.available()[-1]


OPERATIONS = ("rms_norm", "qk_norm", "rope", "gated")


@pytest.mark.parametrize("kind", OPERATIONS)
def test_operations_on_rows_are_their_kernels(kind: str) -> None:
    rng = np.random.default_rng(12)
    bench, kernels = Bench(max_tokens=40, max_logit_rows=40), native.Kernels()
    table = rng.normal(size=(40, 1024)).astype(np.float32)
    x, program = bench.embedding(table), bench.program
    weight = rng.normal(size=1024).astype(np.float32)
    out, cols = x, 1024
    if kind == "rms_norm":
        out = bench.buffer(1024)
        program.add_rms_norm(x=x, weight=weight, eps=1e-5, add=x, out=out, origin=kind)
        expected = kernels.rms_norm(table, weight, table, 1e-5)
    elif kind == "qk_norm":
        q, k = weight[:64], weight[64:128]
        shape = {"heads": 10, "kv_heads": 3, "head_dim": 64, "eps": 1e-6}
        program.add_qk_norm(x=x, q_weight=q, k_weight=k, **shape, origin=kind)
        heads = table.reshape(40, 16, 64)
        expected = heads.copy()
        for h in range(13):
            expected[:, h] = kernels.rms_norm(heads[:, h].copy(), q if h < 10 else k, None, 1e-6)
        expected = expected.reshape(40, 1024)
    elif kind == "rope":
        angles, inv_freq = bench.buffer(48), 0.7 ** np.arange(24)
        program.add_rope_angles(out=angles, inv_freq=inv_freq, scale=1.5, origin=kind)
        program.add_rope(x=x, angles=angles, heads=13, head_dim=64, origin=kind)
        expected = table.copy()
        for t in range(40):
            cos, sin = native.Kernels.rope_angles(inv_freq, t, 1.5)
            turned = kernels.rope(table[t].reshape(16, 64), cos, sin)
            expected[t, : 13 * 64] = turned[:13].reshape(-1)
    else:
        out, cols = bench.buffer(512), 512
        program.add_gated(x=x, activation="gelu_tanh", out=out, origin=kind)
        expected = kernels.gelu_tanh_mul(table[:, :512].copy(), table[:, 512:].copy())
    runner = bench.finish(out, cols)
    run(runner, [(range(40), 0, [0, 1])], range(40))
    np.testing.assert_array_equal(runner.logits[:40], expected)


@pytest.mark.parametrize("format", ["F32", "BF16", "Q4_0", "Q6_K"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("tokens", [1, 5, 150])
def test_gated_linear_is_linear_then_gated(format: str, activation: str, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    bench, like = Bench(max_tokens=150, threads=3), np.empty((640, 256), np.float32)
    program = bench.program
    x = bench.embedding(rng.normal(size=(150, 256)).astype(np.float32))
    blocks = [random_blocks(format, like.size, rng) for _ in range(2)]
    bias = rng.normal(size=2 * 640).astype(np.float32)
    plain = bench.pack_blocks(blocks, [format] * 2, like, like)
    alternating = bench.pack_blocks(blocks, [format] * 2, like, like, alternate=True)
    rows = x
    if plain.input_type != "f32":
        rows = bench.buffer(256, plain.input_type)
        program.add_round_rows(x=x, out=rows, origin="round")
    both, together = bench.buffer(2 * 640), bench.buffer(2 * (640 + 64))
    program.add_linear(x=rows, weight=plain, bias=bias, out=both, origin="linear")
    same = bench.pack(np.eye(640, dtype=np.float32))
    reader_format = "Q8_0" if plain.input_type == "q8" else "BF16"
    blocks = [random_blocks(reader_format, 64 * 640, rng)]
    reader = bench.pack_blocks(blocks, [reader_format], np.empty((64, 640), np.float32))
    column = 0
    for fused in (False, True):
        out, rounded = bench.buffer(640), bench.buffer(640, reader.input_type)
        to: dict[str, Any] = {"out": out, "out_rows": rounded, "activation": activation}
        if fused:
            program.add_gated_linear(x=rows, weight=alternating, bias=bias, **to, origin="fused")
        else:
            program.add_gated(x=both, **to, origin="gated")
        for value, weight in ((out, same), (rounded, reader)):
            program.add_linear(x=value, weight=weight, out=together, out_col=column, origin="copy")
            column += weight.rows
    runner = bench.finish(together, 2 * (640 + 64))
    seen = range(0, tokens, -(-tokens // 16))
    run(runner, [(range(tokens), 0, range(5))], seen)
    first, second = np.split(runner.logits[: len(seen)], 2, axis=1)
    assert np.any(first)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("over", ["nothing", "input", "result"])
@pytest.mark.parametrize("rows_later", [0, 1, 2])
def test_operations_on_rows_join_unless_their_memory_overlaps(over: str, rows_later: int) -> None:
    """The second norm writes over the first one's input or unread result, some rows later.

    In the same rows it would do no harm; that is refused, too.
    """
    rng = np.random.default_rng(3)
    bench, table = Bench(), rng.normal(size=(40, 64)).astype(np.float32)
    program = bench.program
    places = {"input": 1 << 24, "result": 1 << 25, "nothing": 1 << 26}
    x = program.buffer(offset=places["input"], cols=64, type="f32", rows="tokens")
    program.add_embedding(out=x, weight=bench.pack(table), scale=1.0, origin="table")
    y, same = bench.buffer(64), bench.pack(np.eye(64, dtype=np.float32))
    program.add_linear(x=x, weight=same, out=y, origin="linear")  # joins nobody
    z, one = bench.buffer(64), np.ones(64, np.float32)
    rounded = program.buffer(offset=places["result"], cols=64, type="bf16", rows="tokens")
    program.add_rms_norm(x=x, weight=one, eps=0.0, out=z, out_rows=rounded, origin="first")
    place = places[over] + 256 * rows_later
    last = program.buffer(offset=place, cols=64, type="f32", rows="tokens")
    program.add_rms_norm(x=z, weight=one, add=y, eps=1e-3, out=last, origin="second")
    runner = bench.finish(last, 64)
    runner.profile(True)
    run(runner, [(range(40), 0, [0, 1])], range(16))
    kernels = native.Kernels()
    first = kernels.rms_norm(table, one, None, 0.0)
    np.testing.assert_array_equal(
        runner.logits[:16], kernels.rms_norm(first, one, table, 1e-3)[:16]
    )
    origins = [entry["origin"] for entry in runner.profile(False)]
    joined = ["first, second"] if over == "nothing" else ["first", "second"]
    assert origins == ["table", "linear", *joined, "take_logit_rows"]
