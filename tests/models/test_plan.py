"""The planner: values that live at the same time never share memory."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint import open_checkpoint
from samovar.models.plan import Plan, lifetimes, plan, row_bytes
from samovar.models.program import ROW_OPS, Op, Program, Rows, RowType, Value
from samovar.models.registry import build_program

GOLDEN = Path(__file__).parent.parent / "golden"


def check(program: Program, planned: Plan, max_rows: dict[Rows, int]) -> None:
    lives = lifetimes(program)
    assert planned.places.keys() == lives.keys()
    for buffer, place in planned.places.items():
        life = lives[buffer]
        assert place.offset % 64 == 0
        assert (
            place.num_bytes
            == row_bytes(life.value.type, life.value.cols) * max_rows[life.value.rows]
        )
        assert place.offset + place.num_bytes <= planned.num_bytes
        for other, elsewhere in planned.places.items():
            if other == buffer or lives[other].last < life.first or life.last < lives[other].first:
                continue
            apart = (
                place.offset + place.num_bytes <= elsewhere.offset
                or elsewhere.offset + elsewhere.num_bytes <= place.offset
            )
            assert apart, f"{life} and {lives[other]} overlap"


def check_chains(program: Program, planned: Plan) -> None:
    """Row operations of one kind of rows that follow each other use no memory twice."""

    def rows_of(op: Op) -> set[Rows] | None:
        return {value.rows for value in op.outs.values()} if op.kind in ROW_OPS else None

    for rows, chain in groupby(program.ops, key=rows_of):
        if rows is None:
            continue
        used = {value.buffer for op in chain for value in (*op.ins.values(), *op.outs.values())}
        places = sorted(
            (place.offset, place.offset + place.num_bytes)
            for place in (planned.places[buffer] for buffer in used)
        )
        assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


@pytest.mark.parametrize("name", ["llama", "llama_untied", "gemma3"])
def test_models_fit_into_little_memory(name: str) -> None:
    program = build_program(open_checkpoint(GOLDEN / f"{name}.gguf"))
    planned = plan(program, max_tokens=256, max_logit_rows=32)
    check(program, planned, {Rows.TOKENS: 256, Rows.LOGITS: 32})
    check_chains(program, planned)
    unshared = sum(place.num_bytes for place in planned.places.values())
    assert planned.num_bytes < unshared / 2


@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Chains of operations that each read some earlier values and write one or two new ones."""
    values: list[Value] = []
    ops: list[Op] = []

    def new() -> Value:
        type: RowType = data.draw(st.sampled_from(["f32", "q8", "bf16"]))
        rows = data.draw(st.sampled_from(Rows))
        value = Value(len(values), 0, rows, data.draw(st.integers(1, 300)), type, "here")
        values.append(value)
        return value

    for _ in range(data.draw(st.integers(1, 20))):
        ins = data.draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
        outs = {f"out{i}": new() for i in range(data.draw(st.integers(1, 2)))}
        kind = data.draw(st.sampled_from(["linear", "rms_norm"]))
        ops.append(Op(kind, outs, {f"in{i}": v for i, v in enumerate(ins)}, {}, {}, "here"))
    program = Program(tuple(ops), next(iter(ops[-1].outs.values())))
    planned = plan(program, max_tokens=9, max_logit_rows=2)
    check(program, planned, {Rows.TOKENS: 9, Rows.LOGITS: 2})
    check_chains(program, planned)


def test_row_bytes_are_those_of_the_native_core() -> None:
    sizes = {
        (type, cols): row_bytes(type, cols)
        for type, cols in [
            ("f32", 1),
            ("f32", 17),
            ("bf16", 65),
            ("q8", 64),
            ("q8", 65),
            ("q8", 576),
        ]
    }
    assert sizes == {
        ("f32", 1): 64,
        ("f32", 17): 128,
        ("bf16", 65): 256,
        ("q8", 64): 128,
        ("q8", 65): 192,
        ("q8", 576): 896,
    }
