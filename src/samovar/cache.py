"""Our cache directory: downloaded models and what is slow to compute."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_dir


def cache_directory() -> Path:
    """SAMOVAR_CACHE_HOME, else the platform's own place; it may not exist yet."""
    root = os.environ.get("SAMOVAR_CACHE_HOME") or user_cache_dir("samovar", appauthor=False)
    return Path(root).expanduser()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal.  Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
