"""What the tests of blocks on disk begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk_cases import REQUEST, run, start
from engine_cases import MODEL_PATHS, load, replies


@pytest.fixture
def expected() -> list[int]:
    return replies(load(MODEL_PATHS[0], ctx=512), [REQUEST])["r"][0]


@pytest.fixture
def warm(tmp_path: Path, expected: list[int]) -> Path:
    """A directory with the blocks of REQUEST and its reply."""
    assert run(start(tmp_path)) == (expected, 0)
    return tmp_path
