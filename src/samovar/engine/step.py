"""The arrays of one step, filled from its chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from samovar.engine.scheduler import Chunk


def step_arrays(chunks: list[Chunk]) -> dict[str, NDArray[np.int32]]:
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
    table = np.full((len(chunks), max(map(len, blocks))), -1, dtype=np.int32)
    for row, ids in zip(table, blocks, strict=True):
        row[: len(ids)] = ids
    return {
        "tokens": _int32(tokens),
        "positions": _int32(positions),
        "seq_start": _int32(seq_start),
        "kv_len": _int32([c.start + c.count for c in chunks]),
        "block_table": table,
        "logit_rows": _int32(logit_rows),
    }


def _int32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
