"""Files -> named tensors, config, vocabulary and chat template, whatever the format."""

from __future__ import annotations

from pathlib import Path

from samovar.checkpoint.base import Checkpoint
from samovar.checkpoint.gguf_checkpoint import GGUFCheckpoint
from samovar.errors import UnsupportedModel

__all__ = ["Checkpoint", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`, its header read and checked, its tensors still on disk.

    Raises CheckpointError, UnsupportedModel.
    """
    if path.is_dir():
        raise UnsupportedModel(
            f"{path}: safetensors directories are not supported yet; give the path of a GGUF file"
        )
    return GGUFCheckpoint(path)
