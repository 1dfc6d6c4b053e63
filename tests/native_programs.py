"""Small native programs for tests of the native core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samovar import _native as native

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# Where the float16 scales lie in a block.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def int32(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int32)


def random_blocks(name: str, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """`count` elements of random weights in a format: [blocks, bytes]."""
    values = rng.normal(scale=0.2, size=count).astype(np.float32)
    if name == "F32":
        return values.view(np.uint8).reshape(-1, 4)
    if name == "F16":
        return values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1, 2)
    size, elements = {
        "Q4_0": (18, 32),
        "Q4_1": (20, 32),
        "Q5_0": (22, 32),
        "Q5_1": (24, 32),
        "Q8_0": (34, 32),
        "Q4_K": (144, 256),
        "Q5_K": (176, 256),
        "Q6_K": (210, 256),
    }[name]
    blocks = rng.integers(0, 256, size=(count // elements, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scale = rng.normal(scale=0.01, size=(len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    return blocks


@dataclass
class Bench:
    """A pool, an arena, and buffers that are placed one after the other."""

    threads: int = 2
    max_tokens: int = 64
    max_logit_rows: int = 16
    max_sequences: int = 16
    isa: str | None = None
    pool: native.Pool = field(init=False)
    arena: native.Arena = field(init=False)
    program: native.Program = field(init=False)
    _end: int = 0

    def __post_init__(self) -> None:
        self.pool = native.Pool(self.threads)
        self.arena = native.Arena()
        self.program = native.Program(
            max_tokens=self.max_tokens,
            max_logit_rows=self.max_logit_rows,
            max_sequences=self.max_sequences,
            buffer_bytes=1 << 30,
        )

    def buffer(self, cols: int, type: str = "f32", rows: str = "tokens") -> int:
        offset = self._end
        count = self.max_tokens if rows == "tokens" else self.max_logit_rows
        self._end += (cols * 4 + 255) // 64 * 64 * count
        return self.program.buffer(offset=offset, cols=cols, type=type, rows=rows)

    def pack(self, *parts: Floats, alternate: bool = False) -> native.Weight:
        """The parts, [rows, cols] each, as one F32 weight."""
        blocks = [p.view(np.uint8) for p in parts]
        return self.pack_blocks(blocks, ["F32"] * len(parts), *parts, alternate=alternate)

    def pack_blocks(
        self,
        blocks: Sequence[NDArray[np.uint8]],
        formats: Sequence[str],
        *like: NDArray[Any],
        alternate: bool = False,
    ) -> native.Weight:
        """Blocks that hold matrices with the shapes of `like`."""
        return native.Weight.pack(
            [b.reshape(-1) for b in blocks],
            list(formats),
            [m.shape[0] for m in like],
            like[0].shape[1],
            alternate=alternate,
            arena=self.arena,
            pool=self.pool,
        )

    def embedding(self, table: Floats) -> int:
        """A buffer that holds row tokens[t] of the table: how tests feed any values."""
        out = self.buffer(table.shape[1])
        self.program.add_embedding(out=out, weight=self.pack(table), scale=1.0, origin="embedding")
        return out

    def finish(self, x: int, cols: int, cache: native.KvCache | None = None) -> native.Runner:
        """A runner whose logits are the rows of x."""
        out = self.buffer(cols, rows="logits")
        self.program.add_take_logit_rows(x=x, out=out, origin="take_logit_rows")
        self.program.set_logits(x=out)
        cache = cache or small_cache()
        return native.Runner(self.program, cache, native.Kernels(self.isa), self.pool)


def small_cache(num_blocks: int = 16) -> native.KvCache:
    return native.KvCache(layers=1, kv_heads=1, head_dim=32, num_blocks=num_blocks, dtype="bf16")


def run(
    runner: native.Runner,
    chunks: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    logit_rows: Sequence[int] | None = None,
) -> list[int]:
    """One step over chunks (tokens, start, blocks); logits of each last row by default.

    Returns the rows that were not finite.
    """
    ends = np.cumsum([len(tokens) for tokens, _, _ in chunks])
    width = max(len(blocks) for _, _, blocks in chunks)
    table = np.full((len(chunks), width), -1, np.int32)
    for row, (_, _, blocks) in zip(table, chunks, strict=True):
        row[: len(blocks)] = blocks
    return runner.run(
        tokens=int32(t for tokens, _, _ in chunks for t in tokens),
        positions=int32(start + i for tokens, start, _ in chunks for i in range(len(tokens))),
        seq_start=int32([0, *ends]),
        kv_len=int32(start + len(tokens) for tokens, start, _ in chunks),
        block_table=table,
        logit_rows=int32(ends - 1 if logit_rows is None else logit_rows),
    )


@dataclass(frozen=True)
class Decoder:
    """The shape of a small random decoder in F32."""

    vocab: int = 100
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    inner: int = 96
    layers: int = 2
    window: int = 0

    def load(
        self, *, threads: int = 2, isa: str | None = None, kv: str = "bf16", num_blocks: int = 64
    ) -> native.Runner:
        return self.load_with_cache(threads=threads, isa=isa, kv=kv, num_blocks=num_blocks)[0]

    def load_with_cache(
        self, *, threads: int = 2, isa: str | None = None, kv: str = "bf16", num_blocks: int = 64
    ) -> tuple[native.Runner, native.KvCache]:
        rng = np.random.default_rng(7)
        bench = Bench(threads, isa=isa)
        program, heads = bench.program, self.heads + 2 * self.kv_heads

        def matrix(rows: int, cols: int) -> Floats:
            return (rng.normal(size=(rows, cols)) / np.sqrt(cols)).astype(np.float32)

        table = rng.normal(size=(self.vocab, self.hidden)).astype(np.float32)
        head = bench.pack(table)
        x = bench.embedding(table)
        angles = bench.buffer(self.head_dim)
        half = self.head_dim // 2
        program.add_rope_angles(
            out=angles, inv_freq=10000.0 ** -(np.arange(half) / half), scale=1.0, origin="angles"
        )
        normed, out = bench.buffer(self.hidden), bench.buffer(self.heads * self.head_dim)
        qkv, both = bench.buffer(heads * self.head_dim), bench.buffer(2 * self.inner)
        gated = bench.buffer(self.inner)
        ones = np.ones(self.hidden, np.float32)
        for layer in range(self.layers):
            program.add_rms_norm(x=x, weight=ones, eps=1e-5, out=normed, origin="norm")
            rows = (self.heads, self.kv_heads, self.kv_heads)
            parts = [matrix(n * self.head_dim, self.hidden) for n in rows]
            program.add_linear(x=normed, weight=bench.pack(*parts), out=qkv, origin="qkv")
            program.add_rope(
                x=qkv,
                angles=angles,
                heads=self.heads + self.kv_heads,
                head_dim=self.head_dim,
                origin="rope",
            )
            program.add_attention(
                x=qkv,
                out=out,
                layer=layer,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                scale=self.head_dim**-0.5,
                window=self.window,
                origin="attention",
            )
            weight = bench.pack(matrix(self.hidden, self.heads * self.head_dim))
            program.add_linear(x=out, weight=weight, out=x, add=x, origin="o")
            program.add_rms_norm(x=x, weight=None, eps=1e-5, out=normed, origin="norm")
            weight = bench.pack(matrix(self.inner, self.hidden), matrix(self.inner, self.hidden))
            program.add_linear(x=normed, weight=weight, out=both, origin="gate_up")
            program.add_gated(x=both, activation="silu", out=gated, origin="gated")
            weight = bench.pack(matrix(self.hidden, self.inner))
            program.add_linear(x=gated, weight=weight, out=x, add=x, origin="down")
        last = bench.buffer(self.hidden, rows="logits")
        program.add_take_logit_rows(x=x, out=last, origin="take_logit_rows")
        logits = bench.buffer(self.vocab, rows="logits")
        program.add_linear(x=last, weight=head, out=logits, origin="head")
        program.set_logits(x=logits)
        cache = native.KvCache(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            num_blocks=num_blocks,
            dtype=kv,
        )
        return native.Runner(program, cache, native.Kernels(isa), bench.pool), cache
