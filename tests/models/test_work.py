"""The work of a step: each weight read once, each key and value that is seen, each product."""

from __future__ import annotations

from typing import Any

import pytest

from samovar.models.program import Rows
from samovar.models.work import Attention, Linear, OperationWork, PackedMatrix, Work, total

BODY = Linear("model.py:1", Rows.TOKENS, num_weights=1000, matrix=PackedMatrix("q8", 600))
HEAD = Linear("model.py:9", Rows.LOGITS, num_weights=5000, matrix=PackedMatrix("bf16", 10000))
FULL = Attention("model.py:5", heads=4, kv_heads=2, head_dim=32, window=0)
SLIDING = Attention("model.py:6", heads=4, kv_heads=2, head_dim=32, window=8)


@pytest.mark.parametrize(
    ("chunks", "num_logit_rows", "num_bytes", "macs"),
    [
        ([(0, 1)], 0, 600, {"q8": 1000}),
        ([(0, 7)], 1, 10600, {"q8": 7000, "bf16": 5000}),
        ([(9, 1)] * 3, 3, 10600, {"q8": 3000, "bf16": 15000}),
    ],
)
def test_weights_are_read_once_for_all_rows(
    chunks: list[tuple[int, int]], num_logit_rows: int, num_bytes: int, macs: dict[Any, int]
) -> None:
    step = Work((BODY, HEAD), ()).step(chunks, num_logit_rows=num_logit_rows, kv="bf16")
    assert total([step]) == OperationWork(num_bytes, macs)


def test_a_gated_linear_has_a_line_of_its_own() -> None:
    gated = Linear("model.py:3", Rows.TOKENS, 10, PackedMatrix("q8", 6), kind="gated_linear")
    step = Work((BODY, gated), ()).step([(0, 1)], num_logit_rows=0, kv="bf16")
    assert [line for line, _ in step] == [("linear", "model.py:1"), ("gated_linear", "model.py:3")]


@pytest.mark.parametrize(
    ("layer", "chunk", "num_read", "num_products"),
    [
        (FULL, (0, 1), 1, 1),
        (FULL, (10, 1), 11, 11),
        (FULL, (10, 3), 13, 11 + 12 + 13),
        (SLIDING, (6, 3), 9, 7 + 8 + 8),
        (SLIDING, (100, 1), 8, 8),
        (SLIDING, (100, 5), 12, 40),
    ],
)
def test_attention_reads_what_its_rows_see(
    layer: Attention, chunk: tuple[int, int], num_read: int, num_products: int
) -> None:
    for kv, token_bytes, type in (
        ("f32", 4 * 32, "f32"),
        ("bf16", 2 * 32, "bf16"),
        ("q8", 32 + 4, "bf16"),
    ):
        step = total([Work((), (layer, layer)).step([chunk], num_logit_rows=0, kv=kv)])
        # Two layers, keys and values of two heads; four query heads.
        assert step.num_bytes == 2 * 2 * 2 * num_read * token_bytes
        assert step.macs == {type: 2 * 2 * 4 * 32 * num_products}


def test_steps_add_up() -> None:
    line = ("linear", "model.py:1")
    first = [(line, OperationWork(1, {"q8": 2})), (line, OperationWork(10, {"q8": 20}))]
    second = [(line, OperationWork(100, {"f32": 5}))]
    assert total([first, second]) == OperationWork(111, {"q8": 22, "f32": 5})


def test_each_operation_has_its_line() -> None:
    work = Work((BODY, BODY, HEAD), (FULL, SLIDING, FULL))
    lines = [line for line, _ in work.step([(3, 2)], num_logit_rows=1, kv="bf16")]
    assert sorted(lines) == [
        ("attention", "model.py:5"),
        ("attention", "model.py:5"),
        ("attention", "model.py:6"),
        ("linear", "model.py:1"),
        ("linear", "model.py:1"),
        ("linear", "model.py:9"),
    ]
