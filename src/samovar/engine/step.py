"""The arrays of one step, filled from its chunks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from samovar.engine.scheduler import Chunk


def int32_array(values: Sequence[int]) -> array[int]:
    """Numbers as the native core takes them, made more quickly than an array of numpy."""
    return array("i", values)


def step_arrays(chunks: list[Chunk]) -> dict[str, array[int] | memoryview]:
    """The arguments of the native step.

    Rows of the chunks are concatenated, T in all, S sequences, L chunks that reach their end:

        tokens, positions [T]   seq_start [S + 1]   kv_len [S]   block_table [S, most blocks]
        logit_rows [L]: the last num_logit_rows of each chunk
    """
    tokens: list[int] = []
    positions: list[int] = []
    seq_start = [0]
    logit_rows: list[int] = []
    for chunk in chunks:
        end = chunk.start + chunk.count
        tokens += chunk.seq.tokens[chunk.start : end]
        tokens += chunk.drafts
        positions += range(chunk.start, end)
        seq_start.append(len(tokens))
        if chunk.num_logit_rows:
            logit_rows += range(len(tokens) - chunk.num_logit_rows, len(tokens))
    blocks = [chunk.seq.block_ids for chunk in chunks]
    width = max(map(len, blocks))
    table = int32_array([])
    for ids in blocks:
        table.extend(ids)
        table.extend([-1] * (width - len(ids)))
    return {
        "tokens": int32_array(tokens),
        "positions": int32_array(positions),
        "seq_start": int32_array(seq_start),
        "kv_len": int32_array([c.start + c.count for c in chunks]),
        "block_table": memoryview(table).cast("B").cast("i", (len(chunks), width)),
        "logit_rows": int32_array(logit_rows),
    }
