"""SentencePiece vocabularies: which two pieces each piece is made of.

SentencePiece joins, again and again, the two neighbours whose joined piece has the best score,
the leftmost first among equals.  The `tokenizers` library ranks pairs instead.  The two agree
exactly when each piece has one pair and ranks follow scores:

Let l and r be neighbours that could be joined to the piece l+r.  Nothing was joined across
their outer ends, so what happened inside them is what happens when l+r stands alone.  Standing
alone it comes to one last pair only.  So no other pair for that piece ever meets in any text,
and the pair is found by running SentencePiece's own rule on the piece itself.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samovar.errors import UnsupportedModel

_NEVER = float("-inf")
_MAGIC = b"samovar merges 1\n"


def ranked_merges(
    scores: Mapping[str, float], *, cache_dir: Path | None, cache_key: str
) -> list[tuple[str, str]]:
    """The pair of each piece that can be made by joining, best score first.

    scores: all pieces that joining may use or make.  Where two joinable pieces have the same
    score only their places in the text decide, which ranks cannot express: UnsupportedModel.
    """
    pieces = [piece for piece in scores if len(piece) > 1]
    values = np.fromiter(map(scores.__getitem__, pieces), np.float64, len(pieces))
    order = np.argsort(-values, kind="stable")
    pieces = [pieces[i] for i in order.tolist()]
    path = None if cache_dir is None else cache_dir / f"merges-{_file_name(cache_key)}.bin"
    splits = None if path is None else _read_splits(path, pieces)
    if splits is None:
        splits = np.fromiter((_last_split(p, scores) for p in pieces), np.uint16, len(pieces))
        if path is not None:
            _write_splits(path, splits, pieces)
    joined = np.flatnonzero(splits)
    ranks = values[order][joined]
    equal = np.flatnonzero(ranks[1:] == ranks[:-1])
    if equal.size:
        left, right = (pieces[joined[equal[0] + i]] for i in (0, 1))
        raise UnsupportedModel(
            f"tokenizer.ggml.scores: the pieces {left!r} and {right!r} have the same score "
            f"({scores[left]:g}); a vocabulary with equal scores is not supported"
        )
    cuts = zip(pieces, splits.tolist(), strict=True)
    return [(piece[:cut], piece[cut:]) for piece, cut in cuts if cut]


def _last_split(piece: str, scores: Mapping[str, float]) -> int:
    """Where the last two parts of `piece` meet when it is built alone; 0 if it never is whole."""
    parts = list(piece)
    if len(parts) > 2:
        get = scores.get
        joins = [get(a + b, _NEVER) for a, b in pairwise(parts)]
        while len(parts) > 2:
            best = max(joins)
            if best == _NEVER:
                return 0
            i = joins.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
            del joins[i]
            if i > 0:
                joins[i - 1] = get(parts[i - 1] + parts[i], _NEVER)
            if i < len(joins):
                joins[i] = get(parts[i] + parts[i + 1], _NEVER)
    return len(parts[0]) if parts[0] in scores and parts[1] in scores else 0


def _file_name(cache_key: str) -> str:
    return hashlib.sha256(cache_key.encode()).hexdigest()[:32]


def _digest(payload: bytes, pieces: Sequence[str]) -> bytes:
    # Also over the pieces, so that a key that two vocabularies share does no harm.
    digest = hashlib.sha256(payload)
    digest.update("\0".join(pieces).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _read_splits(path: Path, pieces: Sequence[str]) -> NDArray[np.uint16] | None:
    """What _write_splits left for these pieces, or None; a damaged file counts as none."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    header, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if header != _MAGIC + _digest(payload, pieces) or len(payload) != 2 * len(pieces):
        return None
    return np.frombuffer(payload, "<u2").astype(np.uint16)


def _write_splits(path: Path, splits: NDArray[np.uint16], pieces: Sequence[str]) -> None:
    payload = splits.astype("<u2").tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(payload, pieces) + payload)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError:
        return  # A cache that cannot be written only costs time.
