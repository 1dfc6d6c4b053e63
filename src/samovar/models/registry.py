"""Which file builds which model: one line for each `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from samovar.checkpoint.base import Checkpoint
from samovar.errors import UnsupportedModel
from samovar.models import gemma3, llama
from samovar.models.builder import Builder
from samovar.models.config import ConfigReader
from samovar.models.program import Program, Value

ARCHITECTURES: Final[Mapping[str, Callable[[Builder, ConfigReader], Value]]] = MappingProxyType(
    {
        "gemma3_text": lambda b, c: gemma3.build(b, gemma3.Config.read(c)),
        "llama": lambda b, c: llama.build(b, llama.Config.read(c)),
        "mistral": lambda b, c: llama.build(b, llama.Config.read(c)),
    }
)

# What some files carry although the configuration says the same.
_HARMLESS_SUFFIXES: Final = ("rotary_emb.inv_freq",)


def build_program(checkpoint: Checkpoint) -> Program:
    """The operations of the checkpoint's model.

    Raises UnsupportedModel for an architecture, setting or tensor that is not implemented,
    CheckpointError for a configuration that does not fit the tensors.
    """
    config = ConfigReader(checkpoint.config, checkpoint.path)
    model_type = config.choice("model_type", tuple(ARCHITECTURES))
    builder = Builder(checkpoint)
    program = builder.finish(ARCHITECTURES[model_type](builder, config))
    unused = {name for name in checkpoint.unused() if not name.endswith(_HARMLESS_SUFFIXES)}
    if unused:
        raise UnsupportedModel(
            f"{checkpoint.path}: holds tensors that {model_type} does not use: {_some(unused)}; "
            "it is a variant that this version cannot run"
        )
    return program


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
