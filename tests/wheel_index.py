"""A package index in a directory, with tiny wheels that hold a model in two parts."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from samovar.hub.catalog import KnownModel, WheelPart

PARTS = (b"GGUF first part " * 5000, b"second part " * 4000)


def write_wheel(index: Path, package: str, files: dict[str, bytes]) -> None:
    """A pure Python wheel of version 1.0 in `index`."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def tiny_model(content: bytes = b"".join(PARTS)) -> KnownModel:
    """The catalog's entry of the tiny model, whose whole file shall be `content`."""
    return KnownModel(
        alias="tiny:1m",
        title="Tiny",
        licence="Apache-2.0",
        file_name="tiny.gguf",
        num_bytes=len(content),
        sha256=sha256(content).hexdigest(),
        parts=tuple(
            WheelPart(f"tiny-model-part{n}", "1.0", f"tiny_model_part{n}/data/tiny.gguf.part0{n}")
            for n in (1, 2)
        ),
    )


@dataclass
class Index:
    """path: the directory with the wheels.  cache: where models are kept."""

    path: Path
    cache: Path
    calls: list[tuple[str, int, int | None]] = field(default_factory=list)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.calls.append((what, done, total))

    @property
    def names(self) -> list[str]:
        """What lies in the cache, the lock apart."""
        return sorted(p.name for p in self.cache.iterdir() if not p.name.endswith(".lock"))
