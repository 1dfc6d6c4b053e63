"""Where each value lives: buffers whose lifetimes do not meet share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from samovar.models.program import ROW_OPS, Program, Rows, RowType, Value

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer, described by one of its values, and the turns that use it, first to last."""

    value: Value
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer lies at `offset`, in bytes from the start of the arena."""

    value: Value
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """places: by buffer.  num_bytes: size of the arena."""

    places: Mapping[int, Place]
    num_bytes: int


def row_bytes(type: RowType, cols: int) -> int:
    """Bytes of one row: the same sizes as `row_bytes` of native/dtype.h."""
    padded = _round_up(cols)
    if type == "f32":
        return _round_up(cols * 4)
    if type == "bf16":
        return padded * 2
    return _round_up(padded * 3 // 2)


def turns(program: Program) -> list[int]:
    """For each operation, when it runs: row operations that follow each other run in one turn.

    The native core takes a row through all of them, so the first may still read other rows when
    the last has begun to write.
    """
    kinds = ((op.kind in ROW_OPS, {value.rows for value in op.outs.values()}) for op in program.ops)
    joins = (before == own and own[0] for before, own in pairwise(kinds))
    return list(accumulate((not joined for joined in joins), initial=0))


def lifetimes(program: Program) -> dict[int, Lifetime]:
    """When each buffer is first written and last read, by buffer.  The logits live to the end."""
    found: dict[int, Lifetime] = {}
    when = turns(program)
    for turn, op in zip(when, program.ops, strict=True):
        for value in (*op.outs.values(), *op.ins.values()):
            first = found[value.buffer].first if value.buffer in found else turn
            found[value.buffer] = Lifetime(value, first, turn)
    logits = program.logits
    found[logits.buffer] = Lifetime(logits, found[logits.buffer].first, when[-1] + 1)
    return found


def plan(program: Program, *, max_tokens: int, max_logit_rows: int) -> Plan:
    """Offsets for the largest step: largest buffers first, each at the lowest place that is free.

    The inputs and outputs of an operation, and of all that run in one turn, never overlap, so no
    kernel needs to care about aliasing.
    """
    max_rows = {Rows.TOKENS: max_tokens, Rows.LOGITS: max_logit_rows}
    lives = lifetimes(program)
    sizes = {
        buffer: row_bytes(life.value.type, life.value.cols) * max_rows[life.value.rows]
        for buffer, life in lives.items()
    }
    places: dict[int, Place] = {}
    for buffer in sorted(sizes, key=lambda b: (-sizes[b], b)):
        life = lives[buffer]
        alive_too = sorted(
            (place.offset, place.offset + place.num_bytes)
            for other, place in places.items()
            if lives[other].first <= life.last and life.first <= lives[other].last
        )
        offset = 0
        for start, end in alive_too:
            if start - offset >= sizes[buffer]:
                break
            offset = max(offset, end)
        places[buffer] = Place(life.value, offset, sizes[buffer])
    return Plan(places, max(place.offset + place.num_bytes for place in places.values()))


def _round_up(n: int) -> int:
    return (n + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
