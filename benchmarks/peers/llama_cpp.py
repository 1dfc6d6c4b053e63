"""llama.cpp as a contender: llama-bench, llama-batched-bench and llama-server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rows import THREADS, Samples, Work

START_TIMEOUT_S = 120


class LlamaCpp:
    """llama.cpp with flash attention on or off; everything else is its default, so KV is f16."""

    server_fields: Mapping[str, Any] = MappingProxyType({"ignore_eos": True})

    def __init__(self, directory: Path, *, flash: bool) -> None:
        self._bin = directory
        self._flash = "on" if flash else "off"
        self.name = f"llama.cpp, flash attention {self._flash}"

    def measure(self, work: Work, model: Path) -> Samples:
        if work.kind == "streams":
            return self._batched_bench(work, model)
        command = [str(self._bin / "llama-bench"), "-m", str(model), "-t", str(THREADS)]
        command += ["-fa", self._flash, "-r", str(work.repeat), "-o", "json"]
        if work.kind == "prefill":
            command += ["-p", str(work.prompt), "-n", "0"]
        else:
            command += ["-p", "0", "-n", str(work.tokens), "-d", str(work.prompt)]
        (test,) = json.loads(_output(command))
        rates: list[float] = test["samples_ts"]
        return {work.rows[0]: rates}

    def _batched_bench(self, work: Work, model: Path) -> Samples:
        most = max(work.streams)
        context = -(-(work.prompt + work.tokens) // 128) * 128 * most
        command = [str(self._bin / "llama-batched-bench"), "-m", str(model), "-t", str(THREADS)]
        command += ["-fa", self._flash, "-c", str(context), "--output-format", "jsonl"]
        command += ["-npp", str(work.prompt), "-ntg", str(work.tokens)]
        command += ["-npl", ",".join(map(str, work.streams)), "-lv", "3"]
        lines = [line for line in _output(command).splitlines() if line.startswith('{"n_kv_max"')]
        rates = {test["pl"]: [test["speed_tg"]] for test in map(json.loads, lines)}
        return {row: rates[count] for row, count in zip(work.rows, work.streams, strict=True)}

    @contextmanager
    def serve(self, work: Work, model: Path) -> Iterator[str]:
        slots = max(work.streams)
        context = -(-(work.prompt + work.tokens) // 256) * 256 * slots
        options = ["-np", str(slots), "-c", str(context), "-fa", self._flash]
        with _server(self._bin, model, options) as (url, _):
            yield url


def system_info(directory: Path, model: Path) -> tuple[str, str]:
    """The version, and llama.cpp's own line on what it uses of this processor."""
    with _server(directory, model, ["-np", "1", "-c", "256", "-lv", "4"]) as (_, log):
        lines = re.search(r"system_info: .*", log.read_text())
    command = [str(directory / "llama-server"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    version = next(
        line for line in (done.stderr + done.stdout).splitlines() if line.startswith("version")
    )
    return version, lines[0] if lines else "it prints no line of system_info"


@contextmanager
def _server(directory: Path, model: Path, options: list[str]) -> Iterator[tuple[str, Path]]:
    """URL and log of a server on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(directory / "llama-server"), "-m", str(model), "-t", str(THREADS)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--cache-ram", "0", *options]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _is_ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("llama-server did not start:\n" + log.read_text())
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/v1", log
        finally:
            process.terminate()
            process.wait(timeout=60)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout
