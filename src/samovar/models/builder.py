"""The vocabulary in which model files are written: one method for each operation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from samovar.checkpoint.base import Checkpoint, TensorInfo
from samovar.errors import CheckpointError
from samovar.models.program import Array, Matrix, Op, Program, ProgramError, Rows, RowType, Value
from samovar.models.rope import Rope

# How a matmul reads its input, by the format of the weights; all quantized ones read q8.
_INPUT_TYPES: Final[Mapping[str, RowType]] = MappingProxyType(
    {"F32": "f32", "F16": "f32", "BF16": "bf16"}
)
# Operations that can write their result as rounded rows at the same time.
_ROW_WRITERS: Final = frozenset({"rms_norm", "gated", "gated_linear", "attention"})
# Rows of two matrices that alternate in memory: kAlternatingRows of native/weight.h.
_ALTERNATING_ROWS: Final = 64


class Builder:
    """Appends operations to a list and reads their weights from a checkpoint, shapes checked.

    Tensor names are relative to the open scopes.  A value may be read until an in-place
    operation has replaced it; later reads raise ProgramError.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._prefix = ""
        self._ops: list[Op] = []
        self._num_buffers = 0
        self._latest: dict[int, Value] = {}  # by buffer
        self._producer: dict[Value, int] = {}  # index of the operation that wrote a value
        self._rounded: dict[tuple[Value, RowType], Value] = {}
        self._angles: dict[Rope, Value] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put `name.` before the tensor names that are used inside the `with` block."""
        outer, self._prefix = self._prefix, f"{self._prefix}{name}."
        try:
            yield
        finally:
            self._prefix = outer

    def format(self, name: str) -> str:
        """The storage format of the tensor `name`: "F32", "BF16", "Q4_K", ..."""
        return self._checkpoint.tensor(self._prefix + name).format.name

    # Operations

    def embedding(self, name: str, vocab_size: int, cols: int, *, scale: float = 1.0) -> Value:
        """Rows of the table `name` for the step's tokens, times `scale`.

        name: [vocab_size, cols].  Returns [tokens, cols] f32.
        """
        weight = Matrix((self._tensor(name, (vocab_size, cols)),))
        out = self._new(Rows.TOKENS, cols)
        self._append("embedding", out={"out": out}, weights={"weight": weight}, scale=scale)
        return out

    def rms_norm(self, x: Value, name: str, eps: float, *, add: Value | None = None) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight [+ add], for each row.

        x, add: [rows, n] f32.  name: [n], the whole multiplier.  Returns [rows, n] f32.
        Source: Zhang and Sennrich 2019, arXiv:1910.07467.
        """
        out = self._new(x.rows, x.cols)
        self._append(
            "rms_norm",
            out={"out": out},
            ins={"x": x} | self._residual(add, out),
            weights={"weight": self._vector(name, x.cols)},
            eps=eps,
        )
        return out

    def linear(
        self,
        x: Value,
        names: str | tuple[str, ...],
        widths: int | tuple[int, ...],
        *,
        bias: bool = False,
        add: Value | None = None,
    ) -> Value:
        """x times each weight matrix transposed [+ bias] [+ add], side by side in order of `names`.

        x: [rows, k] f32.  names: matrices [width, k], one width for each.  bias: whether each
        `NAME.weight` has its `NAME.bias`, [width].  add: [rows, sum of widths] f32, as the result.
        Each weight format has one type of input (dtype.h); x is rounded to it once, by its
        producer where that can write rows.
        """
        names = (names,) if isinstance(names, str) else names
        widths = (widths,) if isinstance(widths, int) else widths
        parts = [self._tensor(n, (w, x.cols)) for n, w in zip(names, widths, strict=True)]
        biases = self._biases(names, widths) if bias else None
        out = self._new(x.rows, sum(widths))
        residual = self._residual(add, out)
        column = 0
        for type, group in groupby(parts, key=_input_type):
            weight = Matrix(tuple(group))
            weights: dict[str, Matrix | NDArray[np.float32]] = {"weight": weight}
            if biases is not None:
                weights["bias"] = biases[column : column + weight.rows]
            self._append(
                "linear",
                out={"out": out},
                ins={"x": self._rows_of(x, type)} | residual,
                weights=weights,
                out_col=column,
            )
            column += weight.rows
        return out

    def qk_norm(
        self,
        qkv: Value,
        names: tuple[str, str],
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
    ) -> Value:
        """RMSNorm of each head of q and of k, in place; v is left alone.

        qkv: [tokens, (heads + 2 * kv_heads) * head_dim] f32.  names: weights of q and of k,
        [head_dim] each.
        """
        self._expect_cols(qkv, (heads + 2 * kv_heads) * head_dim)
        q_weight, k_weight = (self._vector(name, head_dim) for name in names)
        return self._in_place(
            "qk_norm",
            qkv,
            weights={"q_weight": q_weight, "k_weight": k_weight},
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            eps=eps,
        )

    def rope(self, qkv: Value, heads: int, head_dim: int, rope: Rope) -> Value:
        """Rotate the first `heads` heads in place by their positions: dimension i with i + dim/2.

        qkv: [tokens, at least heads * head_dim] f32; heads: those of q and k together.
        rope.dim: rotated dimensions, the first of each head.
        Source: Su et al. 2021, arXiv:2104.09864; half-split layout.
        """
        if rope.dim > head_dim or qkv.cols < heads * head_dim:
            raise ProgramError(f"{_origin()}: {heads} heads of {head_dim} do not fit {qkv}")
        angles = self._angles.get(rope)
        if angles is None:
            angles = self._angles[rope] = self._new(Rows.TOKENS, rope.dim)
            frequencies = rope.inverse_frequencies()
            self._append("rope_angles", out={"out": angles}, inv_freq=frequencies, scale=1.0)
        return self._in_place("rope", qkv, ins={"angles": angles}, heads=heads, head_dim=head_dim)

    def attention(
        self,
        qkv: Value,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float,
        window: int = 0,
    ) -> Value:
        """Store this step's k and v in the cache of `layer`, then attend causally over the cache.

        qkv: [tokens, (heads + 2 * kv_heads) * head_dim] f32; query head h reads kv head
        h // (heads // kv_heads).  scale: factor of q.k.  window: how many positions are seen, the
        token's own included; 0 is all.  Returns [tokens, heads * head_dim] f32.
        Source: Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245.
        """
        self._expect_cols(qkv, (heads + 2 * kv_heads) * head_dim)
        out = self._new(Rows.TOKENS, heads * head_dim)
        self._append(
            "attention",
            out={"out": out},
            ins={"x": qkv},
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=scale,
            window=window,
        )
        return out

    def gated(self, x: Value, activation: str) -> Value:
        """activation(gate) * up, of the two halves of each row.

        x: [rows, 2n] f32, gate | up.  activation: "silu" or "gelu_tanh".  Returns [rows, n] f32.
        Source: Shazeer 2020, arXiv:2002.05202.
        """
        out = self._new(x.rows, x.cols // 2)
        self._append("gated", out={"out": out}, ins={"x": x}, activation=activation)
        return out

    def gated_linear(
        self,
        x: Value,
        names: tuple[str, str],
        width: int,
        activation: str,
        *,
        bias: bool = False,
    ) -> Value:
        """activation(gate) * up, of the products of x with the two matrices.

        x: [rows, k] f32.  names: of gate and up, [width, k] each.  activation: as of `gated`.
        bias: as of `linear`.  Returns [rows, width] f32.
        One operation where the matrices may alternate, else `linear` and `gated`.
        """
        parts = tuple(self._tensor(name, (width, x.cols)) for name in names)
        if parts[0].format != parts[1].format or width % _ALTERNATING_ROWS != 0:
            return self.gated(self.linear(x, names, (width, width), bias=bias), activation)
        weights: dict[str, Matrix | NDArray[np.float32]] = {"weight": Matrix(parts, alternate=True)}
        if bias:
            weights["bias"] = self._biases(names, (width, width))
        out = self._new(x.rows, width)
        self._append(
            "gated_linear",
            out={"out": out},
            ins={"x": self._rows_of(x, _input_type(parts[0]))},
            weights=weights,
            activation=activation,
        )
        return out

    def take_logit_rows(self, x: Value) -> Value:
        """The rows of x whose logits are wanted: what follows costs nothing for the others.

        x: [tokens, n] f32.  Returns [logits, n] f32.
        """
        out = self._new(Rows.LOGITS, x.cols)
        self._append("take_logit_rows", out={"out": out}, ins={"x": x})
        return out

    def finish(self, logits: Value) -> Program:
        """The program that yields `logits`, without f32 results that are read as rows only."""
        if logits.rows is not Rows.LOGITS or logits.type != "f32":
            raise ProgramError(f"{logits.origin}: logits must be f32 and of the logit rows")
        self._check_current(logits)
        read = {value for op in self._ops for value in op.ins.values()} | {logits}
        ops = [
            replace(op, outs={"out_rows": op.outs["out_rows"]})
            if "out_rows" in op.outs and op.outs["out"] not in read
            else op
            for op in self._ops
        ]
        return Program(ops=tuple(ops), logits=logits)

    # Reading the checkpoint

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = self._checkpoint.tensor(self._prefix + name)
        if tensor.shape != shape:
            raise CheckpointError(
                f"{self._checkpoint.path}: tensor {tensor.name} has shape {list(tensor.shape)}, "
                f"the configuration asks for {list(shape)}"
            )
        return tensor

    def _vector(self, name: str, size: int) -> NDArray[np.float32]:
        tensor = self._tensor(name, (size,))
        return np.ascontiguousarray(tensor.format.dequantize(tensor.data), dtype=np.float32)

    def _biases(self, names: Sequence[str], widths: Sequence[int]) -> NDArray[np.float32]:
        """The biases of several matrices, side by side."""
        return np.concatenate(
            [
                self._vector(f"{name.removesuffix('weight')}bias", width)
                for name, width in zip(names, widths, strict=True)
            ]
        )

    # The list

    def _new(self, rows: Rows, cols: int, type: RowType = "f32") -> Value:
        value = Value(self._num_buffers, 0, rows, cols, type, _origin())
        self._num_buffers += 1
        return value

    def _append(
        self,
        kind: str,
        *,
        out: Mapping[str, Value],
        ins: Mapping[str, Value] = MappingProxyType({}),
        weights: Mapping[str, Matrix | NDArray[np.float32]] = MappingProxyType({}),
        **attrs: int | float | str | Array,
    ) -> None:
        for value in ins.values():
            self._check_current(value)
        for value in out.values():
            self._latest[value.buffer] = value
            self._producer[value] = len(self._ops)
        self._ops.append(Op(kind, out, ins, weights, attrs, _origin()))

    def _in_place(
        self,
        kind: str,
        x: Value,
        *,
        ins: Mapping[str, Value] = MappingProxyType({}),
        weights: Mapping[str, Matrix | NDArray[np.float32]] = MappingProxyType({}),
        **attrs: int | float | str | Array,
    ) -> Value:
        new = replace(x, version=x.version + 1, origin=_origin())
        self._append(kind, out={"x": new}, ins={"x": x, **ins}, weights=weights, **attrs)
        return new

    def _rows_of(self, x: Value, type: RowType) -> Value:
        """x in the form that a matmul reads, rounded at most once for each type."""
        if type == x.type:
            return x
        if (x, type) in self._rounded:
            self._check_current(x)
            return self._rounded[x, type]
        rounded = self._rounded[x, type] = self._new(x.rows, x.cols, type)
        producer = self._producer[x]
        op = self._ops[producer]
        if op.kind in _ROW_WRITERS and "out_rows" not in op.outs:
            self._check_current(x)
            self._ops[producer] = replace(op, outs={**op.outs, "out_rows": rounded})
            self._latest[rounded.buffer] = rounded
            self._producer[rounded] = producer
        else:
            self._append("round_rows", out={"out": rounded}, ins={"x": x})
        return rounded

    def _residual(self, add: Value | None, out: Value) -> dict[str, Value]:
        if add is None:
            return {}
        if (add.rows, add.cols, add.type) != (out.rows, out.cols, "f32"):
            raise ProgramError(f"{_origin()}: add is {add}, the result is {out}")
        return {"add": add}

    def _expect_cols(self, x: Value, cols: int) -> None:
        if x.cols != cols:
            raise ProgramError(f"{_origin()}: expected {cols} columns, {x} was made there")

    def _check_current(self, value: Value) -> None:
        latest = self._latest.get(value.buffer)
        if latest is None:
            raise ProgramError(f"{_origin()}: reads a value of another builder: {value}")
        if latest != value:
            raise ProgramError(
                f"{_origin()}: reads the value made at {value.origin}, "
                f"but {latest.origin} has changed it in place"
            )


def _input_type(tensor: TensorInfo) -> RowType:
    return _INPUT_TYPES.get(tensor.format.name, "q8")


def _origin() -> str:
    """The line of the nearest caller outside this file, as "llama.py:23"."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
