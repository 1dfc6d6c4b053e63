"""From a model file to everything that a step needs, planned to fit into memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypedDict

from samovar import _native as native
from samovar.cache import cache_directory
from samovar.checkpoint import Checkpoint, open_checkpoint
from samovar.engine.blocks import BLOCK_TOKENS, blocks_for
from samovar.engine.disk import UNWRITTEN_BYTES, DiskTier
from samovar.engine.fingerprint import NUMERICS, fingerprint, remembered_sha256
from samovar.engine.scheduler import PROMPT_LOGIT_ROWS
from samovar.engine.speculate import MOST_DRAFTS
from samovar.errors import MemoryLimit, SettingError, UnsupportedModel
from samovar.models import LoadedProgram, load_program
from samovar.models.work import Work
from samovar.text.template import ChatTemplate
from samovar.text.tokenizer import Tokenizer

DEFAULT_MAX_CTX = 4096
LONG_S = 1.0  # loading that takes longer shows its progress
KV_SHARE_OF_FREE_MEMORY = 4  # the pool takes one part in so many, if one context needs no more

# What a runner reserves beside the activations.
PARTIALS_BYTES = 16 << 20  # of attention
WORKER_BYTES = 1 << 20  # scratch and stack of each thread
SAMPLER_BYTES = 32  # of each thread for each token of the vocabulary
# Left alone: Python's objects grow with the requests, and other processes want memory too.
MARGIN_PARTS = 20
MAX_MARGIN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to run a model; 0 and None mean that the machine and the model decide.

    ctx: tokens of prompt and reply.  kv: "bf16", "f32" or "q8".  batch: prompt tokens a step.
    max_queue: requests that may wait besides those that run.
    speculate: "auto" guesses replies ahead from their own text as long as it pays, "ngram" always,
        "off" never; the bytes are the same.
    cache_dir: where blocks of the KV cache are kept on disk, at most `cache_disk_gb` of them.
    max_step_ms: how long a step may last while replies wait for their next token.
    isa: name of a kernel table.  chat_template: a name or a file.
    eos: ids that replace the model's own end tokens.
    """

    ctx: int = 0
    kv: str = "bf16"
    threads: int = 0
    batch: int = 256
    isa: str | None = None
    max_sequences: int = 32
    cache_dir: str | None = None
    cache_disk_gb: float = 10.0
    max_step_ms: int = 100
    max_queue: int = 256
    speculate: str = "auto"
    chat_template: str | None = None
    eos: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded and how it runs; bytes are memory, not file, unless named so."""

    path: Path
    architecture: str
    num_parameters: int
    file_bytes: int
    num_ctx: int
    max_ctx: int
    template_name: str | None
    kv: str
    isa: str
    threads: int
    batch: int
    weight_bytes: int
    buffer_bytes: int
    kv_bytes: int
    load_s: float
    fingerprint: str


Progress: TypeAlias = Callable[[str, int, int | None], None]


class KvShape(TypedDict):
    """What the bytes of a KV block depend on."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The parts that the engine drives, and what they were made of.

    work: what a step costs.
    """

    info: ModelInfo
    work: Work
    kernels: native.Kernels
    pool: native.Pool
    runner: native.Runner
    cache: native.KvCache
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: frozenset[int]
    num_blocks: int
    disk: DiskTier | None


def load_model(
    path: Path,
    options: EngineOptions,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Reads, checks, packs and plans a model.

    sha256: the file's, where it is known already.  progress: called with what is under way, the
    bytes done and the bytes in all, once loading turns out to be long.
    Raises CheckpointError, UnsupportedModel, MemoryLimit, SettingError.
    """
    try:
        return _load(path, options, sha256, progress)
    except MemoryError:
        raise MemoryLimit(
            f"{path.name} could not be loaded: there is not enough memory; "
            f"{native.available_memory() / 1e6:.0f} MB are free."
        ) from None


def _load(
    path: Path, options: EngineOptions, sha256: str | None, progress: Progress | None
) -> LoadedModel:
    started = time.monotonic()
    kernels = _kernels(options.isa)
    checkpoint = open_checkpoint(path)
    file_bytes = path.stat().st_size
    _refuse_if_larger_than_memory(path, file_bytes)

    tokenizer = Tokenizer.build(checkpoint.tokenizer, cache_dir=cache_directory())
    template = _template(options.chat_template, checkpoint, tokenizer)
    pool = _pool(options.threads or native.usable_cores())
    program = load_program(
        checkpoint,
        pool=pool,
        arena=native.Arena(),
        max_tokens=options.batch + options.max_sequences + MOST_DRAFTS + PROMPT_LOGIT_ROWS,
        max_logit_rows=options.max_sequences + MOST_DRAFTS + PROMPT_LOGIT_ROWS,
        max_sequences=options.max_sequences,
        progress=_once_long(progress, path, started),
    )
    if program.vocab_size != tokenizer.vocab_size:
        raise UnsupportedModel(
            f"{path}: the model predicts {program.vocab_size} tokens, but its vocabulary has "
            f"{tokenizer.vocab_size}."
        )
    num_ctx = _context(options.ctx, program.max_ctx)
    cache = _kv_cache(program, num_ctx, options, pool.threads)
    digest = sha256 or remembered_sha256(path)
    template_text = None if template is None else template.source
    info = ModelInfo(
        path=path,
        architecture=program.architecture,
        num_parameters=program.num_parameters,
        file_bytes=file_bytes,
        num_ctx=num_ctx,
        max_ctx=program.max_ctx,
        template_name=None if template is None else template.name,
        kv=options.kv,
        isa=kernels.name,
        threads=pool.threads,
        batch=options.batch,
        weight_bytes=program.weight_bytes,
        buffer_bytes=program.buffer_bytes,
        kv_bytes=cache.nbytes,
        load_s=time.monotonic() - started,
        fingerprint=fingerprint(digest, options.kv, template_text),
    )
    return LoadedModel(
        info=info,
        work=program.work,
        kernels=kernels,
        pool=pool,
        runner=native.Runner(program.native, cache, kernels, pool),
        cache=cache,
        tokenizer=tokenizer,
        template=template,
        end_ids=_end_ids(options.eos, tokenizer, template),
        num_blocks=cache.num_blocks,
        disk=_disk_tier(options, digest, cache),
    )


def _once_long(
    progress: Progress | None, path: Path, started: float
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None

    def report(done: int, total: int) -> None:
        if time.monotonic() - started > LONG_S:
            progress(f"loading {path.name}", done, total)

    return report


def _kernels(isa: str | None) -> native.Kernels:
    try:
        return native.Kernels(isa)
    except ValueError as error:
        raise SettingError(str(error), param="isa") from error


def _pool(num_threads: int) -> native.Pool:
    try:
        return native.Pool(num_threads)
    except RuntimeError as error:
        raise SettingError(
            f"{num_threads} threads could not be started: {error}.", param="threads"
        ) from None


def _template(
    wanted: str | None, checkpoint: Checkpoint, tokenizer: Tokenizer
) -> ChatTemplate | None:
    if wanted is not None:
        if wanted in ChatTemplate.names():
            return ChatTemplate.named(wanted, tokenizer)
        return ChatTemplate.from_file(Path(wanted), tokenizer)
    return ChatTemplate.of_checkpoint(checkpoint, tokenizer)


def _end_ids(
    eos: tuple[int, ...], tokenizer: Tokenizer, template: ChatTemplate | None
) -> frozenset[int]:
    for token in eos:
        if not 0 <= token < tokenizer.vocab_size:
            raise SettingError(
                f"--eos {token} is no token id; this model has 0 to {tokenizer.vocab_size - 1}.",
                param="eos",
            )
    if eos:
        return frozenset(eos)
    return tokenizer.end_ids | (frozenset() if template is None else template.end_ids)


def _context(wanted: int, max_ctx: int) -> int:
    if wanted > max_ctx:
        raise SettingError(
            f"--ctx {wanted} is more than this model's maximum of {max_ctx} tokens.", param="ctx"
        )
    return wanted or min(max_ctx, DEFAULT_MAX_CTX)


def _refuse_if_larger_than_memory(path: Path, file_bytes: int) -> None:
    free = native.available_memory()
    if file_bytes > free:
        raise MemoryLimit(
            f"{path.name} needs about {file_bytes / 1e6:.0f} MB, but only "
            f"{free / 1e6:.0f} MB of memory are free."
        )


def _kv_cache(
    program: LoadedProgram, num_ctx: int, options: EngineOptions, num_threads: int
) -> native.KvCache:
    shape: KvShape = {
        "layers": program.layers,
        "kv_heads": program.kv_heads,
        "head_dim": program.head_dim,
        "dtype": options.kv,
    }
    block_bytes = native.KvCache.block_bytes_for(**shape)
    free = native.available_memory()
    free -= min(free // MARGIN_PARTS, MAX_MARGIN_BYTES)
    free -= program.buffer_bytes + _runner_bytes(program.vocab_size, num_threads)
    if options.cache_dir is not None:
        # One is read, others wait to be written.
        free -= block_bytes + max(block_bytes, UNWRITTEN_BYTES)
    num_blocks = _plan_blocks(num_ctx, options.max_sequences, block_bytes, free)
    return native.KvCache(num_blocks=num_blocks, **shape)


def _runner_bytes(vocab_size: int, num_threads: int) -> int:
    """Memory that a runner needs beside the activations; at most, and touched as it is used."""
    return PARTIALS_BYTES + num_threads * (WORKER_BYTES + SAMPLER_BYTES * vocab_size)


def _disk_tier(options: EngineOptions, model_sha256: str, cache: native.KvCache) -> DiskTier | None:
    if options.cache_dir is None:
        return None
    identity = f"{model_sha256} {NUMERICS} {options.kv}"
    try:
        max_bytes = int(options.cache_disk_gb * 2**30)
        return DiskTier(Path(options.cache_dir), identity, max_bytes, cache)
    except OSError as error:
        raise SettingError(
            f"--cache-dir {options.cache_dir} cannot be used: {error.strerror}.", param="cache_dir"
        ) from error


def _plan_blocks(num_ctx: int, max_sequences: int, block_bytes: int, free: int) -> int:
    """Blocks of the KV pool: at least one context, at most what all sequences can use."""
    one = blocks_for(num_ctx)
    free = max(0, free)
    if one * block_bytes > free:
        fits = free // block_bytes * BLOCK_TOKENS
        advice = f"choose --ctx of at most {fits}, or --kv q8" if fits else "it cannot run here"
        raise MemoryLimit(
            f"The KV cache of one context of {num_ctx} tokens needs "
            f"{one * block_bytes / 1e6:.0f} MB; beside what else is needed, "
            f"only {free / 1e6:.0f} MB are free: "
            f"{advice}."
        )
    return min(one * max_sequences, max(one, free // KV_SHARE_OF_FREE_MEMORY // block_bytes))
