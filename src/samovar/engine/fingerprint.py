"""Names what a reply depends on besides the request: `system_fingerprint`."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from samovar.cache import cache_directory, file_sha256

NUMERICS = "s1"  # the arithmetic of the native core; changes whenever a bit of a logit can


def fingerprint(model_sha256: str, kv: str, template: str | None) -> str:
    """`fp_` and 16 hex digits of model file, numerics, KV type and chat template."""
    parts = json.dumps([model_sha256, NUMERICS, kv, template])
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:16]


def remembered_sha256(path: Path) -> str:
    """SHA-256 of a file, remembered by inode, size and time of change.

    The memory is a file in the cache directory; one that cannot be read or written costs time only.
    """
    stat = path.stat()
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
    memory = cache_directory() / "hashes.json"
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        loaded = json.loads(memory.read_text())
        if isinstance(loaded, dict):
            known = {k: v for k, v in loaded.items() if isinstance(v, str)}
    if key in known:
        return known[key]
    digest = known[key] = file_sha256(path)
    draft = memory.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(known))
            draft.replace(memory)
        finally:
            draft.unlink(missing_ok=True)
    return digest
