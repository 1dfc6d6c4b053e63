"""Cached blocks on disk: written behind, found again after a restart."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import queue
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from samovar import _native as native
from samovar.engine.blocks import BLOCK_TOKENS
from samovar.engine.recency import Recency

logger = logging.getLogger("samovar")

MAGIC = b"samovar kv 4\n"
DIGEST_BYTES = 32
NAME = re.compile(r"[0-9a-f]{64}")
ABANDONED_S = 60  # a block is written in milliseconds; another process may be at it
UNWRITTEN_BYTES = 64 << 20  # of blocks that wait for the disk, or one block if that is larger
# Errors that the next block will meet as well; others (no free descriptor, say) may pass.
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}

Key: TypeAlias = bytes


class CachedBlock(NamedTuple):
    """A completed block of the KV cache under its name on disk."""

    key: Key
    tokens: tuple[int, ...]
    block: int


class FileState(Enum):
    """What a file holds, beside what it should: DIFFERS if there is none, too."""

    SAME = auto()
    DIFFERS = auto()
    UNREADABLE = auto()  # now; it may be sound


class DiskTier:
    """A directory of blocks, one file each, named by all tokens up to its end.

    A name is a chain of hashes over the identity of model, numerics and KV type, the owner and the
    tokens, so a file is found by the exact prefix alone.  Each file repeats its tokens and
    carries a checksum, keyed by its name, of the block; one that does not agree is deleted with a
    warning, and those behind it, which nobody reads then, are compared with what is computed
    instead.  What is no block of ours is left alone.  Reads are on the engine's thread, all else
    that touches files on one of its own: a block that cannot be written is only not cached.

    A block is of use only with all those before it.  So it is written only after them, and counts
    as used a little longer ago than they: of a chain the last block leaves first.

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
        self._lock = threading.Lock()  # of what both threads change, down to the next empty line
        self._known: dict[Key, int] = {}  # bytes of each file
        self._order = Recency()  # of all that are known; a block stands before its parent
        self._unread: set[Key] = set()  # known, of another process and perhaps damaged
        self._num_bytes = 0  # of all that are known
        self._unwritten: set[Key] = set()  # known, but not on disk yet
        self._unwritten_bytes = 0  # of copies that wait, wanted still or not
        self._used: dict[Key, None] = {}  # whose files shall get the time of now, in this order

        self._warned: set[int | None] = set()
        self._writing = True
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._thread = threading.Thread(target=self._work, name="samovar-disk", daemon=True)
        self._thread.start()

    def root(self, owner: str) -> Key:
        """The key before the first block of `owner`."""
        return self._chain(self._root, owner.encode())

    def child(self, key: Key, tokens: Sequence[int]) -> Key:
        """The key of the block `tokens` after the one of `key`."""
        return self._chain(key, np.array(tokens, dtype="<i4").tobytes())

    def has(self, key: Key) -> bool:
        """Whether the block can be read."""
        with self._lock:
            return key in self._known and key not in self._unwritten

    def load(self, key: Key, tokens: Sequence[int], block: int, parent: Key | None) -> bool:
        """Reads a block into the cache; False, and a warning, if its file is not sound."""
        path, is_damaged = self._path(key), False
        try:
            self._cache.write_block(block, _checked(self._read(path), key, tokens))
            with self._lock:
                self._unread.discard(key)
                self._mark_used_after(parent, key)
            return True
        except FileNotFoundError:
            pass  # another process may have needed the room
        except (OSError, ValueError, MemoryError) as error:
            logger.warning("%s: this cached block is ignored: %s", path, error)
            is_damaged = isinstance(error, ValueError)
        with self._lock:
            self._drop(key)
        if is_damaged:
            self._tasks.put(partial(self._delete, key))
        return False

    def store(self, parent: Key | None, new: CachedBlock) -> None:
        """Writes a block behind, if those before it, up to `parent`, were.

        What the disk is too slow or too small for is left out, with all after it; `touch` tries
        again.  The bytes are copied here: the block may be another's when they are written.
        A block that is known and was never read was computed again: its file is to hold the same.
        """
        with self._lock:
            if parent is not None and (parent not in self._known or parent in self._unread):
                return
            self._mark_used_after(parent, new.key)
            if not self._is_missing(new.key):
                return
        self._store_one(parent, new)

    def mark_used(self, chain: Sequence[CachedBlock]) -> None:
        """Notes the use of a prefix, from its first block on."""
        with self._lock:
            for each in reversed(chain):
                if each.key in self._known:
                    self._order.put(each.key)

    def touch(self, chain: Sequence[CachedBlock]) -> None:
        """As `mark_used`, stores what is missing, and lets the times of the files tell the use."""
        self.mark_used(chain)
        with self._lock:
            missing = [i for i, each in enumerate(chain) if self._is_missing(each.key)]
        for i in missing:
            if not self._store_one(chain[i - 1].key if i else None, chain[i]):
                break
        with self._lock:
            is_task_waiting = bool(self._used)
            for each in reversed(chain):
                self._used.pop(each.key, None)
                self._used[each.key] = None
        if chain and not is_task_waiting:
            self._tasks.put(self._write_times)

    def close(self) -> None:
        """Writes what is waiting and ends the thread."""
        self._tasks.put(None)
        self._thread.join()

    def _chain(self, key: Key, data: bytes) -> Key:
        return hashlib.blake2b(data, key=key, digest_size=DIGEST_BYTES).digest()

    def _path(self, key: Key) -> Path:
        return self._directory / key.hex()

    def _is_missing(self, key: Key) -> bool:
        """Whether a block is unknown or perhaps damaged.  The lock is held."""
        return key not in self._known or key in self._unread

    def _mark_used_after(self, parent: Key | None, key: Key) -> None:
        """Notes the use of a known block as a little longer ago than its parent's, which is known.

        The lock is held.
        """
        if key in self._known and (parent is None or parent in self._known):
            self._order.put(key, before=parent)

    def _store_one(self, parent: Key | None, new: CachedBlock) -> bool:
        """Queues a block of which all before it are known; whether that could be done."""
        key, tokens, block = new
        with self._lock:
            waiting = self._unwritten_bytes
            is_full = waiting and waiting + self._cache.block_bytes > UNWRITTEN_BYTES
            if not self._writing or is_full:
                return False
            # Of all before it the parent stands first, so no other can be the oldest.
            if not self._make_room(self._file_bytes - self._known.get(key, 0), (parent, key)):
                return False
        try:
            payload = self._cache.read_block(block)
        except MemoryError:
            return False
        with self._lock:
            if parent is not None and parent not in self._known:
                return False  # it could not be written
            self._drop(key)
            self._add(key, self._file_bytes, parent)
            self._unwritten.add(key)
            self._unwritten_bytes += len(payload)
        self._tasks.put(partial(self._write, parent, key, tokens, payload))
        return True

    def _make_room(self, num_bytes: int, needed: Collection[Key | None] = ()) -> bool:
        """Gives up what was used longest ago until so many bytes may be added.

        False if that would take blocks that are `needed`.  The lock is held.
        """
        while self._num_bytes + num_bytes > self._max_bytes:
            oldest = self._order.oldest
            if oldest is None or oldest in needed:
                return False
            self._drop(oldest)
            self._tasks.put(partial(self._delete, oldest))
        return True

    def _add(self, key: Key, num_bytes: int, parent: Key | None = None) -> None:
        """Knows one more block, right before its parent in the order.  The lock is held."""
        self._known[key] = num_bytes
        self._num_bytes += num_bytes
        self._order.put(key, before=parent)

    def _drop(self, key: Key) -> None:
        """Knows a block no longer.  The lock is held."""
        self._num_bytes -= self._known.pop(key, 0)
        self._order.discard(key)
        self._unwritten.discard(key)
        self._unread.discard(key)

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
                    files.append((info.st_mtime_ns, entry.name, info.st_size))
        for _, name, size in sorted(files):
            self._add(bytes.fromhex(name), size)
        self._unread.update(self._known)
        self._make_room(0)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _write(self, parent: Key | None, key: Key, tokens: tuple[int, ...], payload: bytes) -> None:
        with self._lock:
            is_wanted = key in self._unwritten and (parent is None or parent in self._known)
        parts = _head(tokens), _digest(key, payload), payload
        state = self._write_if_it_differs(key, parts) if is_wanted else FileState.DIFFERS
        with self._lock:
            self._unwritten_bytes -= len(payload)
            if state is FileState.UNREADABLE and key in self._unwritten:
                self._unread.add(key)  # it takes its room still
            if state is not FileState.DIFFERS:
                self._unwritten.discard(key)
            elif key in self._unwritten:
                self._drop(key)
        if state is FileState.DIFFERS:
            self._delete(key)  # there may be one that was never read

    def _write_if_it_differs(self, key: Key, parts: Sequence[bytes]) -> FileState:
        """How the file is afterwards."""
        path = self._path(key)
        state = self._compare(path, parts)
        if state is not FileState.SAME and self._writing:
            try:
                self._write_file(path, *parts)
            except (OSError, MemoryError) as error:
                self._note_failure(error)
            else:
                return FileState.SAME
        return state

    def _compare(self, path: Path, parts: Sequence[bytes]) -> FileState:
        """Whether a file holds exactly these bytes."""
        try:
            data = self._read(path)
        except ValueError:
            return FileState.DIFFERS
        except (OSError, MemoryError):
            return FileState.UNREADABLE if os.path.lexists(path) else FileState.DIFFERS
        start = 0
        for part in parts:
            if not data.startswith(part, start):
                return FileState.DIFFERS
            start += len(part)
        return FileState.SAME

    def _write_file(self, path: Path, *parts: bytes) -> None:
        # A name of chance: in containers all processes may have the same id.
        descriptor, draft = tempfile.mkstemp(".part", f"{path.name}.", self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(parts)
            os.replace(draft, path)
        except (OSError, MemoryError):
            with suppress(OSError):
                os.unlink(draft)
            raise

    def _note_failure(self, error: OSError | MemoryError) -> None:
        number = error.errno if isinstance(error, OSError) else None
        if number in LASTING or not self._directory.is_dir():
            self._writing = False
            logger.warning("%s: no more blocks are cached on disk: %s", self._directory, error)
        elif number not in self._warned:
            self._warned.add(number)
            logger.warning(
                "%s: a block could not be cached on disk, and this is told once: %s",
                self._directory,
                error,
            )

    def _write_times(self) -> None:
        with self._lock:
            used, self._used = self._used, {}
            keys = [key for key in used if key in self._known and key not in self._unwritten]
        for key in keys:
            now = time.time_ns()  # the kernel's own clock for files has steps of milliseconds
            with suppress(OSError):
                os.utime(self._path(key), ns=(now, now), follow_symlinks=False)

    def _delete(self, key: Key) -> None:
        with self._lock:
            if key in self._known:  # again
                return
        with suppress(OSError):
            self._path(key).unlink()


def _head(tokens: Sequence[int]) -> bytes:
    return MAGIC + np.array(tokens, dtype="<i4").tobytes()


def _digest(key: Key, payload: bytes | memoryview) -> bytes:
    return hashlib.blake2b(payload, key=key, digest_size=DIGEST_BYTES).digest()


def _checked(data: bytes, key: Key, tokens: Sequence[int]) -> memoryview:
    """The block's bytes.  Raises ValueError."""
    head = _head(tokens)
    if not data.startswith(head):
        raise ValueError("it belongs to other tokens or another version")
    rest = memoryview(data)[len(head) :]
    digest, payload = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
    if _digest(key, payload) != digest:
        raise ValueError("its checksum is wrong")
    return payload


assert DIGEST_BYTES <= hashlib.blake2b.MAX_KEY_SIZE
assert BLOCK_TOKENS == 32  # a part of the files' format
