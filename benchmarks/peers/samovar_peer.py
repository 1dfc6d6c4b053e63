"""Samovar as a contender: its engine and its server, with the default numerics and KV type."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rows import THREADS, Samples, Work

sys.path.insert(0, str(Path(__file__).parents[1]))
from client import server

WORKER = Path(__file__).parent / "samovar_worker.py"
SPECULATE_OFF = ("--speculate", "off")  # greedy replies to random words repeat themselves


class Samovar:
    """The program whose checkout this is, run by the same interpreter."""

    name = "samovar"
    server_fields: Mapping[str, Any] = MappingProxyType({})

    def measure(self, work: Work, model: Path) -> Samples:
        given = json.dumps({**asdict(work), "threads": THREADS})
        done = subprocess.run(
            [sys.executable, str(WORKER), str(model), given],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, list[float]] = json.loads(done.stdout)
        return dict(zip(work.rows, found.values(), strict=True))

    @contextmanager
    def serve(self, work: Work, model: Path) -> Iterator[str]:
        # A reply has its full length: only token 3, which no model of the table ever writes in
        # practice, would end it.
        options = ["-t", str(THREADS), "--eos", "3", *SPECULATE_OFF]
        with server(str(model), options) as url:
            yield url
