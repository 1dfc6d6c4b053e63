"""Where the peers, the models made for them and nothing else are kept: outside of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_dir


def bench_home() -> Path:
    """SAMOVAR_BENCH_HOME, else a directory in the platform's place for caches."""
    root = os.environ.get("SAMOVAR_BENCH_HOME") or user_cache_dir("samovar-bench", appauthor=False)
    return Path(root).expanduser()


def llama_cpp_bin(home: Path) -> Path:
    """The directory of llama-bench, llama-batched-bench and llama-server."""
    return home / "llama.cpp" / "build" / "bin"


def openvino_python(home: Path) -> Path:
    """The interpreter of OpenVINO's own environment."""
    return home / "openvino" / "bin" / "python"


def model_directory(home: Path) -> Path:
    """Random-weight model files."""
    return home / "models"
