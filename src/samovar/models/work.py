"""What a step has to read and to multiply at least: the yardstick of `samovar bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samovar.models.program import Matrix, Program, Rows, RowType


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """What a packed weight costs.  input_type: of the rows that it multiplies."""

    input_type: RowType
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """num_bytes: weights and KV that are read.  macs: products with their additions, by input."""

    num_bytes: int
    macs: Mapping[RowType, int]

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(self.num_bytes + other.num_bytes, Counter(self.macs) + Counter(other.macs))


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix, each step read once and multiplied with the rows of one kind."""

    rows: Rows
    num_weights: int
    matrix: PackedMatrix


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention.  window: tokens that it sees, 0 for all."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int

    def num_visible(self, position: int) -> int:
        """Positions that the row at `position` attends to."""
        return min(position + 1, self.window) if self.window else position + 1


@dataclass(frozen=True, slots=True)
class Work:
    """The matrix products of a model; norms, activations and the like are not counted."""

    linears: tuple[Linear, ...]
    attentions: tuple[Attention, ...]

    @classmethod
    def of(cls, program: Program, packed: Mapping[tuple[str, ...], PackedMatrix]) -> Work:
        """The work of `program`, whose matrices by key cost what `packed` says."""
        linears, attentions = [], []
        for op in program.ops:
            if op.kind == "linear":
                matrix = next(w for w in op.weights.values() if isinstance(w, Matrix))
                rows = next(iter(op.outs.values())).rows
                linears.append(Linear(rows, matrix.rows * matrix.cols, packed[matrix.key]))
            elif op.kind == "attention":
                attrs = ("heads", "kv_heads", "head_dim", "window")
                attentions.append(Attention(*(_int(op.attrs[name]) for name in attrs)))
        return cls(tuple(linears), tuple(attentions))

    def step(self, chunks: Iterable[tuple[int, int]], *, num_logit_rows: int, kv: str) -> StepWork:
        """The work of a step over `chunks`, each a start and a count of positions.

        kv: type of the KV cache; its keys and values are read once for each chunk.
        """
        chunks = list(chunks)
        num_rows = {Rows.TOKENS: sum(n for _, n in chunks), Rows.LOGITS: num_logit_rows}
        num_bytes = 0
        macs: Counter[RowType] = Counter()
        for linear in self.linears:
            if count := num_rows[linear.rows]:
                num_bytes += linear.matrix.num_bytes
                macs[linear.matrix.input_type] += count * linear.num_weights
        for attention, layers in Counter(self.attentions).items():
            for start, count in chunks:
                positions = range(start, start + count)
                seen = [attention.num_visible(position) for position in positions]
                num_read = seen[0] + count - 1
                num_values = 2 * attention.kv_heads * attention.head_dim * num_read
                num_bytes += int(layers * num_values * _KV_VALUE_BYTES[kv])
                products = 2 * attention.heads * attention.head_dim * sum(seen)
                macs["f32" if kv == "f32" else "bf16"] += layers * products
        return StepWork(num_bytes, macs)


_KV_VALUE_BYTES = {"f32": 4.0, "bf16": 2.0, "q8": 1.125}  # q8: 32 codes share a scale of 4 bytes


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
