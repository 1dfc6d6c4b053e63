"""The arrays of one step, filled from its chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samovar.engine.scheduler import Chunk
from samovar.engine.sequence import Sequence


def step_arrays(chunks: list[Chunk]) -> dict[str, NDArray[np.int32]]:
    """The arguments of the native step.

    Rows of the chunks are concatenated, T in all, S sequences, L chunks that reach their end:

        tokens, positions [T]   seq_start [S + 1]   kv_len [S]   block_table [S, most blocks]
        logit_rows [L]: of each chunk after which a token is sampled, its last row and those before
            its drafts
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
        if chunk.reaches_end:
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


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to be sampled: from which row of the logits, and after which tokens.

    drafted: drafts that stand between the sequence's tokens and the new one.
    """

    seq: Sequence
    row: int
    drafted: tuple[int, ...] = ()


def sampling_arrays(draws: list[Draw]) -> dict[str, NDArray[Any]]:
    """The arguments of the native sampler.

    A draw is keyed by (seed, choice, position of the new token) and depends on nothing else.
    """
    params = [draw.seq.request.sampling for draw in draws]
    repeat_start, repeat_tokens = [0], []
    reply_start, reply_tokens = [0], []
    for draw, p in zip(draws, params, strict=True):
        if p.repeat_penalty != 1.0 and p.repeat_last_n:
            recent = [*draw.seq.tokens[-p.repeat_last_n :], *draw.drafted]
            repeat_tokens += recent[-p.repeat_last_n :]
        if p.frequency_penalty or p.presence_penalty:
            reply_tokens += [*draw.seq.reply, *draw.drafted]
        repeat_start.append(len(repeat_tokens))
        reply_start.append(len(reply_tokens))
    return {
        "rows": _int32([draw.row for draw in draws]),
        "temperature": _float32([p.temperature for p in params]),
        "top_k": _int32([p.top_k for p in params]),
        "top_p": _float32([p.top_p for p in params]),
        "min_p": _float32([p.min_p for p in params]),
        "repeat_penalty": _float32([p.repeat_penalty for p in params]),
        "frequency_penalty": _float32([p.frequency_penalty for p in params]),
        "presence_penalty": _float32([p.presence_penalty for p in params]),
        "seed": np.array([p.seed for p in params], dtype=np.uint64),
        "choice": np.array([draw.seq.choice for draw in draws], dtype=np.uint32),
        "position": _int32([len(draw.seq.tokens) + len(draw.drafted) for draw in draws]),
        "repeat_start": _int32(repeat_start),
        "repeat_tokens": _int32(repeat_tokens),
        "reply_start": _int32(reply_start),
        "reply_tokens": _int32(reply_tokens),
    }


def _int32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _float32(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)
