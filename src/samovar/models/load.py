"""From a checkpoint to the native program: weights packed, buffers placed, operations added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np

from samovar import _native as native
from samovar.checkpoint.base import Checkpoint
from samovar.models.config import ConfigReader
from samovar.models.plan import Plan, plan
from samovar.models.program import Matrix, MatrixKey, Program, ProgramError, RowType
from samovar.models.registry import build_program
from samovar.models.work import PackedMatrix, Work


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program that is ready to run, and what its KV cache must look like.

    max_ctx: tokens that the model was made for.  weight_bytes: packed weights in memory.
    buffer_bytes: activations of the largest step.  work: what steps cost.
    """

    native: native.Program
    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_ctx: int
    num_parameters: int
    weight_bytes: int
    buffer_bytes: int
    work: Work


def load_program(
    checkpoint: Checkpoint,
    *,
    pool: native.Pool,
    arena: native.Arena,
    max_tokens: int,
    max_logit_rows: int,
    max_sequences: int,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedProgram:
    """Builds the checkpoint's model, packs its weights into `arena` and plans its buffers.

    progress: called with weight bytes done and in all.  The checkpoint is not needed afterwards.
    Raises CheckpointError, UnsupportedModel, MissingTensor.
    """
    config = ConfigReader(checkpoint.config, checkpoint.path)
    max_ctx = config.int("max_position_embeddings")
    program = build_program(checkpoint)
    weights = _pack(program, checkpoint, pool, arena, progress)
    layers, kv_heads, head_dim = _cache_geometry(program)
    layout = plan(program, max_tokens=max_tokens, max_logit_rows=max_logit_rows)
    lowered = native.Program(
        max_tokens=max_tokens,
        max_logit_rows=max_logit_rows,
        max_sequences=max_sequences,
        buffer_bytes=layout.num_bytes,
    )
    _lower(program, layout, weights, lowered)
    return LoadedProgram(
        native=lowered,
        architecture=str(checkpoint.config["model_type"]),
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=program.logits.cols,
        max_ctx=max_ctx,
        num_parameters=_count_parameters(program),
        weight_bytes=arena.nbytes,
        buffer_bytes=layout.num_bytes,
        work=Work.of(program, {key: _cost(weight) for key, weight in weights.items()}),
    )


def _pack(
    program: Program,
    checkpoint: Checkpoint,
    pool: native.Pool,
    arena: native.Arena,
    progress: Callable[[int, int], None] | None,
) -> dict[MatrixKey, native.Weight]:
    """The packed form of every matrix, once for each, however many operations use it."""
    matrices = program.matrices()
    total = sum(_num_bytes(matrix) for matrix in matrices.values())
    done = 0
    packed = {}
    for key, matrix in matrices.items():
        packed[key] = native.Weight.pack(
            [np.frombuffer(part.data, dtype=np.uint8) for part in matrix.parts],
            [part.format.name for part in matrix.parts],
            [part.shape[0] for part in matrix.parts],
            matrix.cols,
            alternate=matrix.alternate,
            arena=arena,
            pool=pool,
        )
        checkpoint.drop_pages()  # else the file's pages would count on top of the packed copy
        done += _num_bytes(matrix)
        if progress is not None:
            progress(done, total)
    return packed


def _lower(
    program: Program,
    layout: Plan,
    weights: Mapping[MatrixKey, native.Weight],
    lowered: native.Program,
) -> None:
    """Adds the buffers and operations of `program` to its native form."""
    ids = {
        buffer: lowered.buffer(
            offset=place.offset,
            cols=place.value.cols,
            type=place.value.type,
            rows=place.value.rows.value,
        )
        for buffer, place in layout.places.items()
    }
    for op in program.ops:
        add = getattr(lowered, f"add_{op.kind}")
        values = {key: ids[value.buffer] for key, value in {**op.ins, **op.outs}.items()}
        constants = {
            key: weights[weight.key] if isinstance(weight, Matrix) else weight
            for key, weight in op.weights.items()
        }
        add(**values, **constants, **op.attrs, origin=op.origin)
    lowered.set_logits(x=ids[program.logits.buffer])


def _cache_geometry(program: Program) -> tuple[int, int, int]:
    """Layers, kv heads and dimensions of a head that the KV cache needs."""
    attentions = [op.attrs for op in program.ops if op.kind == "attention"]
    shapes = {(attrs["kv_heads"], attrs["head_dim"]) for attrs in attentions}
    if len(shapes) != 1:
        raise ProgramError(f"layers differ in kv heads or head_dim: {shapes}")
    ((kv_heads, head_dim),) = shapes
    return len(attentions), int(kv_heads), int(head_dim)


def _count_parameters(program: Program) -> int:
    parts = {part.name: prod(part.shape) for m in program.matrices().values() for part in m.parts}
    vectors = (
        w.size for op in program.ops for w in op.weights.values() if isinstance(w, np.ndarray)
    )
    return sum(parts.values()) + sum(vectors)


def _cost(weight: native.Weight) -> PackedMatrix:
    return PackedMatrix(cast(RowType, weight.input_type), weight.nbytes)


def _num_bytes(matrix: Matrix) -> int:
    return sum(part.num_bytes for part in matrix.parts)
