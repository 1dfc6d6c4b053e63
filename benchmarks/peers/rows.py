"""What is measured: the models, the kinds of work, and the ratios to reach."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

THREADS = 2
MANY = 16  # clients at once, and the most streams of a batch

Kind = Literal["prefill", "decode", "streams", "http"]
# Row -> its samples of one measurement.
Samples: TypeAlias = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement, which may yield several rows.

    prompt: tokens read before or, for prefill, while time is taken.  tokens: written by each
    stream.  streams: how many at once, each number a row.  repeat: samples in one process, after
    one that does not count.
    """

    name: str
    kind: Kind
    prompt: int
    tokens: int = 0
    streams: tuple[int, ...] = (1,)
    repeat: int = 1

    @property
    def rows(self) -> tuple[str, ...]:
        if self.kind == "http" and self.streams == (1,):
            return (HTTP_ONE, ENGINE_ONE)
        if self.kind == "http":
            return (HTTP_TOKENS, HTTP_TTFT)
        if self.kind == "streams":
            return tuple(streams_row(count) for count in self.streams)
        return (self.name,)


HTTP_TOKENS = "HTTP, 16 clients"
HTTP_TTFT = "HTTP, 16 clients, time to first token p95"
HTTP_ONE = "HTTP, 1 client"
ENGINE_ONE = "engine, as HTTP with 1 client"
LOWER_IS_BETTER = frozenset({HTTP_TTFT})


def streams_row(count: int) -> str:
    """The name of a row of so many streams."""
    return f"decode, {count} streams"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the table.

    source: a file, a name of the catalog or of random_model.py.
    targets: the ratio to llama.cpp to reach in each row.
    heavy: measured in fewer tokens, so that a pair stays short.
    """

    name: str
    title: str
    source: str
    targets: Mapping[str, float]
    openvino: bool = False
    heavy: bool = False

    def works(self) -> tuple[Work, ...]:
        repeat = 1 if self.heavy else 2
        batch_tokens = 32 if self.heavy else 64
        return (
            Work("prefill 512", "prefill", 512, repeat=repeat),
            Work("prefill 2048", "prefill", 2048),
            Work("decode", "decode", 0, 64 if self.heavy else 128),
            Work("decode at 1024", "decode", 1024, 32 if self.heavy else 64),
            Work("decode in batches", "streams", 16, batch_tokens, (8, MANY)),
            Work("HTTP", "http", 128, 64, (MANY,)),
            Work("HTTP alone", "http", 128, 128 if self.heavy else 256),
        )


ROWS = (
    "prefill 512",
    "prefill 2048",
    "decode",
    "decode at 1024",
    streams_row(8),
    streams_row(MANY),
    HTTP_TOKENS,
    HTTP_TTFT,
)


def _targets(*ratios: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(ROWS, ratios, strict=True)))


_TARGETS_1B = _targets(2.2, 2.5, 1.3, 2.0, 2.5, 3.0, 3.0, 0.4)

MODELS = (
    Model(
        "smollm2",
        "SmolLM2-135M Q4_1",
        "smollm2",
        _targets(3.0, 4.0, 2.0, 3.0, 3.0, 3.5, 4.5, 0.3),
        openvino=True,
    ),
    Model(
        "gemma3-270m",
        "Gemma-3-270M Q4_K_M",
        "gemma3:270m",
        _targets(5.0, 5.0, 1.8, 1.9, 3.0, 3.0, 3.5, 0.4),
    ),
    Model(
        "0.5b-q4_0",
        "0.5B Q4_0",
        "random-0.5b-q4_0",
        _targets(2.0, 2.5, 1.25, 1.8, 2.5, 3.0, 4.0, 0.4),
        openvino=True,
    ),
    Model(
        "0.5b-q8_0",
        "0.5B Q8_0",
        "random-0.5b-q8_0",
        _targets(2.0, 2.5, 1.05, 1.5, 2.5, 3.0, 4.0, 0.4),
    ),
    Model(
        "1b-q4_0",
        "1B Q4_0",
        "random-1b-q4_0",
        _TARGETS_1B,
        heavy=True,
    ),
    Model(
        "1b-q4_k_m",
        "1B Q4_K_M",
        "random-1b-q4_k_m",
        _TARGETS_1B,
        heavy=True,
    ),
)


class Contender(Protocol):
    """A program to measure.

    server_fields: what its server needs in a request so that a reply has its full length.
    """

    name: str
    server_fields: Mapping[str, Any]

    def measure(self, work: Work, model: Path) -> Samples:
        """The samples of each row of `work`, tokens a second; not for work over HTTP."""

    def serve(self, work: Work, model: Path) -> AbstractContextManager[str]:
        """A running server's URL, `/v1` included."""
