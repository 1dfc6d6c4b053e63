"""Cached blocks on disk: written behind, found again after a restart."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from samovar import _native as native
from samovar.engine.blocks import BLOCK_TOKENS

logger = logging.getLogger("samovar")

MAGIC = b"samovar kv 4\n"
DIGEST_BYTES = 32
NAME = re.compile(r"[0-9a-f]{64}")
ABANDONED_S = 60  # a block is written in milliseconds; another process may be at it
MOST_UNWRITTEN = 64  # blocks that wait for the disk; more are not written

Key = bytes


class DiskTier:
    """A directory of blocks, one file each, named by all tokens up to its end.

    A name is a chain of hashes over the identity of model, numerics and KV type, the owner and the
    tokens, so a file is found by the exact prefix alone.  Each file repeats its tokens and
    carries a checksum, keyed by its name, of the block; one that does not agree is deleted with a
    warning.  What is no block of ours is left alone.  Reads are on the engine's thread, writes on
    one of its own: a block that cannot be written is only not cached.

        magic | tokens int32[32] | BLAKE2b of all that follows | the block's bytes
    """

    def __init__(
        self, directory: Path, identity: str, max_bytes: int, cache: native.KvCache
    ) -> None:
        self._directory = directory / hashlib.blake2b(identity.encode()).hexdigest()[:32]
        self._cache = cache
        self._root = hashlib.blake2b(identity.encode(), digest_size=DIGEST_BYTES).digest()
        self._file_bytes = len(_head((0,) * BLOCK_TOKENS)) + DIGEST_BYTES + cache.block_bytes
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, int] = OrderedDict()  # bytes by file name, oldest use first
        self._num_bytes = 0
        self._lock = threading.Lock()  # of the two above: both threads change them
        self._unwritten: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MOST_UNWRITTEN)
        self._writing = True
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._thread = threading.Thread(target=self._write_all, name="samovar-disk", daemon=True)
        self._thread.start()

    def root(self, owner: str) -> Key:
        """The key before the first block of `owner`."""
        return self._chain(self._root, owner.encode())

    def child(self, key: Key, tokens: Sequence[int]) -> Key:
        """The key of the block `tokens` after the one of `key`."""
        return self._chain(key, np.array(tokens, dtype="<i4").tobytes())

    def has(self, key: Key) -> bool:
        return key.hex() in self._known

    def load(self, key: Key, tokens: Sequence[int], block: int) -> bool:
        """Reads a block into the cache; False, and a warning, if its file is not sound."""
        name = key.hex()
        path = self._directory / name
        try:
            self._cache.write_block(block, _checked(self._read(path), key, tokens))
        except (OSError, ValueError, MemoryError) as error:
            logger.warning("%s: this cached block is ignored: %s", path, error)
            self._forget(name)
            return False
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
        return True

    def store(self, key: Key, tokens: Sequence[int], block: int) -> None:
        """Writes a completed block behind, if the disk keeps up and it is not there already."""
        name = key.hex()
        if not self._writing or name in self._known or self._unwritten.full():
            return
        with suppress(queue.Full, MemoryError):
            payload = self._cache.read_block(block)
            data = _head(tokens) + _digest(key, payload) + payload
            self._unwritten.put_nowait((name, data))

    def close(self) -> None:
        """Writes what is waiting and ends the thread."""
        self._unwritten.put(None)
        self._thread.join()

    def _chain(self, key: Key, data: bytes) -> Key:
        return hashlib.blake2b(data, key=key, digest_size=DIGEST_BYTES).digest()

    def _read(self, path: Path) -> bytes:
        """A file's bytes.  Raises OSError, and ValueError unless it can be a block's."""
        # A pipe or a device would block or never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or info.st_size != self._file_bytes:
                raise ValueError(f"it is not a file of {self._file_bytes} bytes")
            return file.read(self._file_bytes)

    def _scan(self) -> None:
        files = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):  # another process may tidy up as well
                info = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".part"):
                    if time.time() - info.st_mtime > ABANDONED_S:
                        os.unlink(entry)  # of a process that was killed while it wrote
                elif NAME.fullmatch(entry.name):
                    files.append((info.st_mtime, entry.name, info.st_size))
        for _, name, size in sorted(files):
            self._known[name] = size
            self._num_bytes += size
        self._make_room(0)

    def _write_all(self) -> None:
        while (item := self._unwritten.get()) is not None:
            if self._writing:
                try:
                    self._write(*item)
                except (OSError, MemoryError) as error:
                    self._writing = False
                    logger.warning(
                        "%s: no more blocks are cached on disk: %s", self._directory, error
                    )

    def _write(self, name: str, data: bytes) -> None:
        if name in self._known or len(data) > self._max_bytes:
            return
        self._make_room(len(data))
        draft = self._directory / f"{name}.{os.getpid()}.part"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(self._directory / name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        with self._lock:
            self._known[name] = len(data)
            self._num_bytes += len(data)

    def _make_room(self, num_bytes: int) -> None:
        """Deletes what was used longest ago until so many bytes may be added."""
        while True:
            with self._lock:
                if not self._known or self._num_bytes + num_bytes <= self._max_bytes:
                    return
                oldest = next(iter(self._known))
            self._forget(oldest)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._num_bytes -= self._known.pop(name, 0)
        with suppress(OSError):
            (self._directory / name).unlink()


def _head(tokens: Sequence[int]) -> bytes:
    return MAGIC + np.array(tokens, dtype="<i4").tobytes()


def _digest(key: Key, payload: bytes) -> bytes:
    return hashlib.blake2b(payload, key=key, digest_size=DIGEST_BYTES).digest()


def _checked(data: bytes, key: Key, tokens: Sequence[int]) -> bytes:
    """The block's bytes.  Raises ValueError."""
    head = _head(tokens)
    if not data.startswith(head):
        raise ValueError("it belongs to other tokens or another version")
    digest, payload = data[len(head) :][:DIGEST_BYTES], data[len(head) + DIGEST_BYTES :]
    if _digest(key, payload) != digest:
        raise ValueError("its checksum is wrong")
    return payload


assert DIGEST_BYTES <= hashlib.blake2b.MAX_KEY_SIZE
assert BLOCK_TOKENS == 32  # a part of the files' format
