"""The oracle: a Program interpreted in numpy, one method for each kind of operation.

Plain mathematics on dequantized weights, a dense KV cache, one sequence at a time. It shares no
code with the native core and none of its orderings, so results agree within rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samovar.models.program import Matrix, MatrixKey, Op, Program, Rows, Value

Array = NDArray[Any]


class Reference:
    """Runs `program` on one sequence.

    dtype: of all arithmetic, float32 or float64.
    round_rows: round the inputs of quantized matrices to int8 blocks of 32 (and those of BF16
    ones to bf16) as the native core does; else they stay exact.
    """

    def __init__(
        self, program: Program, *, round_rows: bool = False, dtype: type = np.float32
    ) -> None:
        self._program = program
        self._rounding = round_rows
        self._dtype = dtype
        self._weights: dict[MatrixKey, Array] = {}
        self._cached_keys: dict[int, Array] = {}  # by layer: [kv_heads, tokens, head_dim]
        self._cached_values: dict[int, Array] = {}
        self._values: dict[Value, Array] = {}
        self._tokens: Array = np.empty(0, np.int64)
        self._start = 0
        self._logit_rows: Array = np.empty(0, np.int64)

    def run(
        self, tokens: Sequence[int], *, rows: Sequence[int] | None = None, chunk: int = 0
    ) -> Array:
        """Logits [len(rows), vocab] at the positions `rows`, ascending (all of them by default).

        chunk: how many tokens a step computes; 0 is all at once.
        """
        wanted = np.arange(len(tokens)) if rows is None else np.asarray(rows, np.int64)
        self._cached_keys.clear()
        self._cached_values.clear()
        chunk = chunk or len(tokens)
        found = []
        for start in range(0, len(tokens), chunk):
            end = min(start + chunk, len(tokens))
            self._tokens = np.asarray(tokens[start:end], np.int64)
            self._start = start
            self._logit_rows = wanted[(wanted >= start) & (wanted < end)] - start
            found.append(self._step())
        return np.concatenate(found)

    def _step(self) -> Array:
        self._values = {}
        # What is never read again is freed: a head's logits are large enough.
        last_use = {v: i for i, op in enumerate(self._program.ops) for v in op.ins.values()}
        for i, op in enumerate(self._program.ops):
            getattr(self, f"_{op.kind}")(op)
            for value in op.ins.values():
                if last_use[value] == i:
                    self._values.pop(value, None)
        return self._values[self._program.logits]

    # Operations

    def _embedding(self, op: Op) -> None:
        table = self._weight(op.weights["weight"])
        self._values[op.outs["out"]] = table[self._tokens] * self._dtype(op.attrs["scale"])

    def _rms_norm(self, op: Op) -> None:
        y = self._norm(self._in(op, "x"), op.weights["weight"], op.attrs["eps"])
        if "add" in op.ins:
            y = y + self._in(op, "add")
        self._out(op, y)

    def _linear(self, op: Op) -> None:
        out = op.outs["out"]
        y = self._in(op, "x") @ self._weight(op.weights["weight"]).T
        if "bias" in op.weights:
            y = y + op.weights["bias"]
        column = int(op.attrs["out_col"])
        if "add" in op.ins:
            y = y + self._in(op, "add")[:, column : column + y.shape[1]]
        if y.shape[1] == out.cols:
            self._values[out] = y
            return
        whole = self._values.setdefault(out, np.full((len(y), out.cols), np.nan, self._dtype))
        whole[:, column : column + y.shape[1]] = y

    def _round_rows(self, op: Op) -> None:
        out = op.outs["out"]
        self._values[out] = self._rounded(self._in(op, "x"), out.type)

    def _qk_norm(self, op: Op) -> None:
        heads, kv_heads, dim = (int(op.attrs[key]) for key in ("heads", "kv_heads", "head_dim"))
        x = self._in(op, "x").copy().reshape(-1, heads + 2 * kv_heads, dim)
        q, k = slice(0, heads), slice(heads, heads + kv_heads)
        x[:, q] = self._norm(x[:, q], op.weights["q_weight"], op.attrs["eps"])
        x[:, k] = self._norm(x[:, k], op.weights["k_weight"], op.attrs["eps"])
        self._values[op.outs["x"]] = x.reshape(len(x), -1)

    def _rope_angles(self, op: Op) -> None:
        positions = self._start + np.arange(len(self._tokens), dtype=np.float64)
        angles = positions[:, None] * np.asarray(op.attrs["inv_freq"], np.float64)
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * op.attrs["scale"]
        self._values[op.outs["out"]] = both.astype(self._dtype)

    def _rope(self, op: Op) -> None:
        heads, dim = int(op.attrs["heads"]), int(op.attrs["head_dim"])
        x = self._in(op, "x").copy()
        cos, sin = np.split(self._in(op, "angles")[:, None, :], 2, axis=2)
        half = cos.shape[2]
        head = x[:, : heads * dim].reshape(len(x), heads, dim)
        a, b = head[..., :half], head[..., half : 2 * half]
        turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)
        x[:, : heads * dim] = np.concatenate([turned, head[..., 2 * half :]], axis=2).reshape(
            len(x), -1
        )
        self._values[op.outs["x"]] = x

    def _attention(self, op: Op) -> None:
        heads, kv_heads, dim = (int(op.attrs[key]) for key in ("heads", "kv_heads", "head_dim"))
        layer, window = int(op.attrs["layer"]), int(op.attrs["window"])
        x = self._in(op, "x").reshape(-1, heads + 2 * kv_heads, dim).transpose(1, 0, 2)
        q, k, v = np.split(x, [heads, heads + kv_heads])
        k = self._extend(self._cached_keys, layer, k)
        v = self._extend(self._cached_values, layer, v)
        group = heads // kv_heads
        q = q.reshape(kv_heads, group, -1, dim)
        scores = (q @ k[:, None].swapaxes(2, 3)) * self._dtype(op.attrs["scale"])
        position = self._start + np.arange(q.shape[2])[:, None]
        key = np.arange(k.shape[1])[None, :]
        seen = (key <= position) & ((key > position - window) if window else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = (weights @ v[:, None]).reshape(heads, -1, dim).transpose(1, 0, 2)
        self._out(op, out.reshape(len(out), -1))

    def _gated(self, op: Op) -> None:
        self._gate(op, self._in(op, "x"))

    def _gated_linear(self, op: Op) -> None:
        y = self._in(op, "x") @ self._weight(op.weights["weight"]).T
        self._gate(op, y + op.weights["bias"] if "bias" in op.weights else y)

    def _gate(self, op: Op, both: Array) -> None:
        gate, up = np.split(both, 2, axis=1)
        if op.attrs["activation"] == "silu":
            exponent = gate
        else:
            exponent = 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        # 1 + tanh(u) is 2 * sigmoid(2u).
        with np.errstate(over="ignore"):
            self._out(op, (gate / (1 + np.exp(-exponent)) * up).astype(self._dtype))

    def _take_logit_rows(self, op: Op) -> None:
        self._values[op.outs["out"]] = self._in(op, "x")[self._logit_rows]

    # Pieces

    def _in(self, op: Op, key: str) -> Array:
        value = op.ins[key]
        x = self._values[value]
        rows = self._tokens if value.rows is Rows.TOKENS else self._logit_rows
        assert x.shape == (len(rows), value.cols), f"{op.kind} at {op.origin}: {key} is {x.shape}"
        return x

    def _out(self, op: Op, y: Array) -> None:
        """Store a result in the forms that are asked for."""
        if "out" in op.outs:
            self._values[op.outs["out"]] = y
        if "out_rows" in op.outs:
            rows = op.outs["out_rows"]
            self._values[rows] = self._rounded(y, rows.type)

    def _weight(self, weight: Matrix | Array) -> Array:
        assert isinstance(weight, Matrix)
        if weight.key not in self._weights:
            self._weights[weight.key] = np.concatenate(
                [part.format.dequantize(part.data).reshape(part.shape) for part in weight.parts]
            ).astype(self._dtype)
        return self._weights[weight.key]

    def _norm(self, x: Array, weight: Any, eps: Any) -> Array:
        mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        return (x / np.sqrt(mean + eps) * weight).astype(self._dtype)

    def _extend(self, cache: dict[int, Array], layer: int, new: Array) -> Array:
        old = cache.get(layer)
        cache[layer] = new if old is None else np.concatenate([old, new], axis=1)
        return cache[layer]

    def _rounded(self, x: Array, type: str) -> Array:
        if not self._rounding:
            return x
        return round_bf16(x) if type == "bf16" else round_q8(x)


def round_q8(x: Array) -> Array:
    """x through int8 in blocks of 32 columns: scale max / 127, ties to even."""
    cols = x.shape[1]
    blocks = np.pad(x, ((0, 0), (0, -cols % 32))).reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.asarray(127, x.dtype) / largest, 0)
        inverse = np.where(np.isfinite(inverse), inverse, 0)
    codes = np.rint(blocks * inverse)
    return (codes * (largest / np.asarray(127, x.dtype))).reshape(len(x), -1)[:, :cols]


def round_bf16(x: Array) -> Array:
    """x rounded to bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(x.dtype)
