"""A GGUF file as a Checkpoint."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from samovar.checkpoint.base import TensorInfo, TokenizerSource
from samovar.checkpoint.gguf import GGUFFile, GGUFTensor
from samovar.checkpoint.gguf_config import ROPE_FACTORS, read_layout
from samovar.checkpoint.gguf_tokenizer import chat_template, end_ids, read_tokenizer
from samovar.errors import MissingTensor


class GGUFCheckpoint:
    """Read access to one GGUF file; implements `Checkpoint`.

    The file is unmapped when the last view of it (`TensorInfo.data`) has gone.
    """

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.path = self._file.path
        self.config, self._names = read_layout(self._file)
        self.generation: dict[str, Any] = {
            "bos_token_id": self.config["bos_token_id"],
            "eos_token_id": end_ids(self._file),
            "pad_token_id": self.config["pad_token_id"],
        }
        self.chat_template = chat_template(self._file)
        # The factors' content has become config["rope_scaling"].
        self._unused = self._names.keys() - {ROPE_FACTORS}

    @cached_property
    def tokenizer(self) -> TokenizerSource:
        """The vocabulary, read and checked when it is first asked for."""
        return read_tokenizer(self._file)

    def tensor(self, name: str) -> TensorInfo:
        """The tensor called `name`.  Raises MissingTensor."""
        renamed = self._names.get(name)
        if renamed is None:
            raise MissingTensor(f"{self.path}: the file holds no tensor for {name}")
        self._unused.discard(name)
        tensor = self._file.tensors[renamed.gguf_name]
        data = self._file.data(tensor)
        if renamed.rope_heads:
            data = _half_split_rows(tensor, data, renamed.rope_heads)
        return TensorInfo(name, tensor.shape, tensor.format, data)

    def has(self, name: str) -> bool:
        """Whether a tensor of that name is there; asking does not count as use."""
        return name in self._names

    def unused(self) -> set[str]:
        """Names of tensors that nobody has asked for."""
        return set(self._unused)

    def drop_pages(self) -> None:
        """Give the file's pages in memory back to the system; what is read again is read anew."""
        self._file.drop_pages()


def _half_split_rows(tensor: GGUFTensor, data: memoryview, heads: int) -> memoryview:
    """Each head's rows in half-split order: pair i, stored at (2i, 2i+1), goes to (i, i + d/2).

    Whole rows move, so their blocks stay as they are.
    """
    row_bytes = tensor.num_bytes // tensor.shape[0]
    pairs = np.frombuffer(data, np.uint8).reshape(heads, -1, 2, row_bytes)
    return memoryview(pairs.swapaxes(1, 2).tobytes())
