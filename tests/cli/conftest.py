"""What all tests of the command line need."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.config import OPTIONS

TINY_MODEL = Path(__file__).parent.parent / "golden/llama.gguf"  # made for a context of 2048


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of whoever runs the tests have no effect on them."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("SAMOVAR_CONFIG", raising=False)
    monkeypatch.delenv("SAMOVAR_TRACEBACK", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def tiny_model(no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model is a tiny real one, computed by one thread; nothing is cached for later."""
    monkeypatch.setenv("SAMOVAR_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SAMOVAR_THREADS", "1")
    monkeypatch.setenv("SAMOVAR_MODEL", str(TINY_MODEL))
