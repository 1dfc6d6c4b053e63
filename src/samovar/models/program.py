"""A model as a flat list of operations over two-dimensional values.

Nothing here computes: `native/program.cc` replays the list, `tests/reference.py` interprets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from samovar.checkpoint.base import TensorInfo

RowType = Literal["f32", "q8", "bf16"]
Array = NDArray[np.float32] | NDArray[np.float64]

MatrixKey = tuple[tuple[str, ...], bool]  # the names of a matrix's parts, whether they alternate

# Kinds of operations that treat each row alone.
ROW_OPS: Final = frozenset(
    {
        "embedding",
        "gated",
        "qk_norm",
        "rms_norm",
        "rope",
        "rope_angles",
        "round_rows",
        "take_logit_rows",
    }
)


class Rows(StrEnum):
    """Which rows of a step a value has: one for each token, or only those that need logits."""

    TOKENS = "tokens"
    LOGITS = "logits"


class ProgramError(Exception):
    """A model file misuses its builder: our own fault, never the user's."""


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix of activations: the rows of a step by `cols` columns.

    buffer: the storage, shared by the values that in-place operations make of one another.
    version: counts those values from 0.  origin: the source line that made this one.
    """

    buffer: int
    version: int
    rows: Rows
    cols: int
    type: RowType
    origin: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weight matrices with the same columns and input type, stacked: [sum of rows, cols].

    alternate: in memory, 64 rows of the first part lie before 64 of the second, and so on.
    """

    parts: tuple[TensorInfo, ...]
    alternate: bool = False

    @property
    def key(self) -> MatrixKey:
        """The same key is the same matrix in memory."""
        return tuple(part.name for part in self.parts), self.alternate

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def cols(self) -> int:
        return self.parts[0].shape[1]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.  `kind` and all keys are those of the native `Program.add_<kind>`.

    An in-place operation has the old value in `ins` and the new one in `outs`, under one key.
    origin: the model file's line, for errors and profiles.
    """

    kind: str
    outs: Mapping[str, Value]
    ins: Mapping[str, Value]
    weights: Mapping[str, Matrix | NDArray[np.float32]]
    attrs: Mapping[str, int | float | str | Array]
    origin: str


@dataclass(frozen=True, slots=True)
class Program:
    """All operations of a step in order; `logits` is the f32 result for the logit rows."""

    ops: tuple[Op, ...]
    logits: Value

    def matrices(self) -> dict[MatrixKey, Matrix]:
        """Every distinct weight matrix by its key, in order of first use."""
        found: dict[MatrixKey, Matrix] = {}
        for op in self.ops:
            for weight in op.weights.values():
                if isinstance(weight, Matrix):
                    found.setdefault(weight.key, weight)
        return found
