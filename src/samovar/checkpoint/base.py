"""What a checkpoint gives, whatever the file format: config, tensors, vocabulary, template."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from samovar.checkpoint.formats import Format


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as it lies in the file.

    shape: row-major, [out, in] for a matrix, [n] for a vector.
    read: gives `data`.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    read: Callable[[], memoryview] = field(repr=False, compare=False)

    @property
    def data(self) -> memoryview:
        """The raw blocks of `format`, rows contiguous.

        A view of the mapped file where the order of its rows is ours, else a new copy each time.
        """
        return self.read()

    @property
    def num_bytes(self) -> int:
        """The size of `data`, which is not read for it."""
        return math.prod(self.shape) // self.format.block_elements * self.format.block_bytes


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """A vocabulary as a GGUF file states it; the text layer turns it into a tokenizer.

    path: the file, for messages.
    model: `tokenizer.ggml.model`: "gpt2" is byte-level BPE, "llama" is SentencePiece.
    pre: `tokenizer.ggml.pre`, the name of the pre-tokenizer of a byte-level BPE, or None.
    token_types: one for each token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused,
    6 byte.
    merges: "left right" pairs in order of rank (BPE only).
    scores: log probabilities (SentencePiece only).
    end_ids: every token that the file declares as the end of a text, a turn or a message.
    cache_key: names the content of this vocabulary, for what is slow to build from it.
    """

    path: str
    model: str
    pre: str | None
    tokens: Sequence[str]
    token_types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    end_ids: Sequence[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    cache_key: str


class Checkpoint(Protocol):
    """Read access to one model; nothing is copied before it is asked for.

    Tensor names are Hugging Face's (`model.layers.0.self_attn.q_proj.weight`), rows are in
    Hugging Face's order (half-split RoPE), and norm weights are the effective multiplier.
    """

    @property
    def path(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def tokenizer(self) -> TokenizerSource: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def title(self) -> str | None:
        """What the model calls itself."""
        ...

    @property
    def licence(self) -> str | None:
        """The licence that the checkpoint states."""
        ...

    def tensors(self) -> Iterable[TensorInfo]:
        """All tensors; looking at them here does not count as use."""
        ...

    def tensor(self, name: str) -> TensorInfo:
        """The tensor called `name`.  Raises MissingTensor."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tensor of that name is there; asking does not count as use."""
        ...

    def unused(self) -> set[str]:
        """Names of tensors that nobody has asked for."""
        ...

    def drop_pages(self) -> None:
        """Give memory that holds the file's pages back; call it now and then while packing."""
        ...
