"""A GGUF file as a Checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from samovar.checkpoint.base import TensorInfo, TokenizerSource
from samovar.checkpoint.gguf import GGUFFile, GGUFTensor
from samovar.checkpoint.gguf_config import ROPE_FACTORS, read_layout
from samovar.checkpoint.gguf_tokenizer import chat_template, read_tokenizer
from samovar.errors import MissingTensor


class GGUFCheckpoint:
    """Read access to one GGUF file; implements `Checkpoint`.

    The file is unmapped when the last view of it (`TensorInfo.data`) has gone.
    """

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.path = self._file.path
        self.config, self._names = read_layout(self._file)
        self.chat_template = chat_template(self._file)
        # The factors' content has become config["rope_scaling"].
        self._unused = self._names.keys() - {ROPE_FACTORS}
        self.title = self._description("general.name")
        self.licence = self._description("general.license")

    @cached_property
    def tokenizer(self) -> TokenizerSource:
        """The vocabulary, read and checked when it is first asked for."""
        return read_tokenizer(self._file)

    def tensor(self, name: str) -> TensorInfo:
        """The tensor called `name`.  Raises MissingTensor."""
        if name not in self._names:
            raise MissingTensor(f"{self.path}: the file holds no tensor for {name}")
        self._unused.discard(name)
        return self._info(name)

    def tensors(self) -> Iterator[TensorInfo]:
        """All tensors; looking at them here does not count as use."""
        return map(self._info, self._names)

    def has(self, name: str) -> bool:
        """Whether a tensor of that name is there; asking does not count as use."""
        return name in self._names

    def unused(self) -> set[str]:
        """Names of tensors that nobody has asked for."""
        return set(self._unused)

    def drop_pages(self) -> None:
        """Give the file's pages in memory back to the system; what is read again is read anew."""
        self._file.drop_pages()

    def _info(self, name: str) -> TensorInfo:
        renamed = self._names[name]
        tensor = self._file.tensors[renamed.gguf_name]
        read = partial(_read, self._file, tensor, renamed.rope_heads)
        return TensorInfo(name, tensor.shape, tensor.format, read)

    def _description(self, key: str) -> str | None:
        value = self._file.metadata.get(key)
        return value if isinstance(value, str) else None


def _read(file: GGUFFile, tensor: GGUFTensor, rope_heads: int) -> memoryview:
    data = file.data(tensor)
    return _half_split_rows(tensor, data, rope_heads) if rope_heads else data


def _half_split_rows(tensor: GGUFTensor, data: memoryview, heads: int) -> memoryview:
    """Each head's rows in half-split order: pair i, stored at (2i, 2i+1), goes to (i, i + d/2).

    Whole rows move, so their blocks stay as they are.
    """
    row_bytes = tensor.num_bytes // tensor.shape[0]
    pairs = np.frombuffer(data, np.uint8).reshape(heads, -1, 2, row_bytes)
    return memoryview(pairs.swapaxes(1, 2).tobytes())
