"""OpenVINO GenAI as a contender: one process for each model, since it loads for seconds."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rows import HTTP_TOKENS, HTTP_TTFT, THREADS, Samples, Work

WORKER = Path(__file__).parent / "openvino_worker.py"


class OpenVino:
    """The engine alone: it has no server, so its rows over HTTP are without HTTP.

    note: its version, or why it does not run the model; then `runs` is false.
    """

    name = "openvino"

    def __init__(self, python: Path, model: Path) -> None:
        self.runs = False
        if not python.exists():
            self.note = "not installed"
            return
        self._process = subprocess.Popen(
            [str(python), str(WORKER), str(model), str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        hello = self._read()
        self.runs = "version" in hello
        self.note = f"OpenVINO GenAI {hello['version']}" if self.runs else hello["error"]

    def measure(self, work: Work) -> Samples:
        """The samples of each row of `work`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        found = list(self._read().values())
        if work.kind == "http":
            return {
                HTTP_TOKENS: [rate for rate, _ in found[0]],
                HTTP_TTFT: [first for _, first in found[0]],
            }
        rates = ([rate for rate, _ in samples] for samples in found)
        return dict(zip(work.rows, rates, strict=True))

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self.runs:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=20)
            self.runs = False

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit("OpenVINO's process has died")
