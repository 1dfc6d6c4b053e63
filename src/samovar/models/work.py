"""What a step has to read and to multiply at least: the yardstick of `samovar bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samovar.models.program import Matrix, MatrixKey, Program, Rows, RowType

_KV_VALUE_BYTES = {"f32": 4.0, "bf16": 2.0, "q8": 1.125}  # q8: 32 codes share a scale of 4 bytes


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """What a packed weight costs.  input_type: of the rows that it multiplies."""

    input_type: RowType
    num_bytes: int


@dataclass(frozen=True, slots=True)
class OperationWork:
    """What one operation does in a step, or several together.

    num_bytes: weights and KV that are read.  macs: products with their additions, by input.
    """

    num_bytes: int
    macs: Mapping[RowType, int]

    @classmethod
    def sum(cls, works: Iterable[OperationWork]) -> OperationWork:
        """What they do together."""
        num_bytes = 0
        macs: Counter[RowType] = Counter()
        for work in works:
            num_bytes += work.num_bytes
            macs.update(work.macs)
        return cls(num_bytes, macs)


Line = tuple[str, str]  # kind and origin of an operation
StepWork = list[tuple[Line, OperationWork]]  # each operation of a step


def total(steps: Iterable[StepWork]) -> OperationWork:
    """What all operations of some steps do."""
    return OperationWork.sum(work for step in steps for _, work in step)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix, each step read once and multiplied with the rows of one kind.

    kind: of the operation.
    """

    origin: str
    rows: Rows
    num_weights: int
    matrix: PackedMatrix
    kind: str = "linear"


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention.  window: tokens that it sees, 0 for all."""

    origin: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int

    def num_visible(self, position: int) -> int:
        """Positions that the row at `position` attends to."""
        return min(position + 1, self.window) if self.window else position + 1

    def work(self, chunks: Iterable[tuple[int, int]], kv: str) -> OperationWork:
        """What it does in a step; keys and values are read once for each chunk."""
        num_read = products = 0
        for start, count in chunks:
            seen = [self.num_visible(position) for position in range(start, start + count)]
            num_read += seen[0] + count - 1
            products += 2 * self.heads * self.head_dim * sum(seen)
        num_bytes = int(2 * self.kv_heads * self.head_dim * num_read * _KV_VALUE_BYTES[kv])
        return OperationWork(num_bytes, {"f32" if kv == "f32" else "bf16": products})


@dataclass(frozen=True, slots=True)
class Work:
    """The matrix products of a model; norms, activations and the like are not counted."""

    linears: tuple[Linear, ...]
    attentions: tuple[Attention, ...]

    @classmethod
    def of(cls, program: Program, packed: Mapping[MatrixKey, PackedMatrix]) -> Work:
        """The work of `program`, whose matrices by key cost what `packed` says."""
        linears, attentions = [], []
        for op in program.ops:
            if op.kind in ("linear", "gated_linear"):
                matrix = next(w for w in op.weights.values() if isinstance(w, Matrix))
                rows = next(iter(op.outs.values())).rows
                num_weights = matrix.rows * matrix.cols
                linears.append(Linear(op.origin, rows, num_weights, packed[matrix.key], op.kind))
            elif op.kind == "attention":
                attrs = ("heads", "kv_heads", "head_dim", "window")
                attentions.append(Attention(op.origin, *(_int(op.attrs[name]) for name in attrs)))
        return cls(tuple(linears), tuple(attentions))

    def step(self, chunks: Iterable[tuple[int, int]], *, num_logit_rows: int, kv: str) -> StepWork:
        """What each operation does in a step over `chunks`, each a start and a count of positions.

        kv: type of the KV cache.
        """
        chunks = list(chunks)
        num_rows = {Rows.TOKENS: sum(n for _, n in chunks), Rows.LOGITS: num_logit_rows}
        step: StepWork = []
        for linear in self.linears:
            if count := num_rows[linear.rows]:
                macs = {linear.matrix.input_type: count * linear.num_weights}
                work = OperationWork(linear.matrix.num_bytes, macs)
                step.append(((linear.kind, linear.origin), work))
        for attention, layers in Counter(self.attentions).items():
            work = attention.work(chunks, kv)
            step += [(("attention", attention.origin), work)] * layers
        return step


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
