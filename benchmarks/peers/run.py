"""Measures Samovar beside its peers, in interleaved pairs, and keeps every figure.

    python benchmarks/peers/install.py
    python benchmarks/peers/run.py [--models NAME ...] [--works NAME ...] [--pairs 5]
    python benchmarks/peers/report.py

A pair is one measurement of each program, one after the other: the speed of a shared machine
drifts, so only figures of the same minute are compared.  llama.cpp runs with flash attention on
and off; once one of them was clearly slower in the first pair, it is left out of the others.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import machine
from http_load import Prompts, measure_http
from llama_cpp import LlamaCpp, system_info
from openvino_peer import OpenVino
from place import bench_home, llama_cpp_bin, model_directory, openvino_python
from random_model import MODELS as RANDOM_MODELS
from random_model import random_model
from results import LLAMA_CPP, OPENVINO, SAMOVAR, Results
from rows import ENGINE_ONE, LOWER_IS_BETTER, MODELS, THREADS, Contender, Model, Samples, Work
from samovar_peer import Samovar

from samovar import __version__, hub

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "peers.json"
CLEARLY_SLOWER = 1.15
MOST_BUSY = 0.05  # of the machine; beyond, figures say little

Measure = Callable[[], Samples]


def main() -> None:
    works = dict.fromkeys(work.name for model in MODELS for work in model.works())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[m.name for m in MODELS], metavar="NAME")
    parser.add_argument("--works", nargs="+", choices=list(works), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--home", type=Path, default=bench_home())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--without-openvino", action="store_true")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="the file of a model that would be downloaded else",
    )
    args = parser.parse_args()
    sources = dict(item.split("=", 1) for item in args.source)
    session = Session(args.home, Results(args.results), args.pairs)
    for model in MODELS:
        if args.models is None or model.name in args.models:
            path = model_path(model, sources, args.home)
            chosen = [w for w in model.works() if args.works is None or w.name in args.works]
            session.run(model, path, chosen, openvino=not args.without_openvino)


def model_path(model: Model, sources: Mapping[str, str], home: Path) -> Path:
    """The file of a model: a given one, one of the catalog, or one that is made now."""
    if model.source in RANDOM_MODELS:
        vocabulary = hub.resolve(sources.get("smollm2", "smollm2")).path
        return random_model(model.source, model_directory(home), vocabulary)
    return hub.resolve(sources.get(model.name, model.source)).path


class Session:
    """Measurements with the same programs on the same machine."""

    def __init__(self, home: Path, results: Results, num_pairs: int) -> None:
        self._home = home
        self._results = results
        self._num_pairs = num_pairs
        self._time = datetime.now(UTC).isoformat(timespec="seconds")
        self._versions: dict[str, str] = {}
        directory = llama_cpp_bin(home)
        self._samovar = Samovar()
        self._llama = [LlamaCpp(directory, flash=flash) for flash in (False, True)]

    def run(self, model: Model, path: Path, works: list[Work], *, openvino: bool) -> None:
        """Measures the works and adds their rows to the results, each as soon as it is there."""
        self._describe(path)
        with ExitStack() as stack:
            other: OpenVino | None = None
            if openvino and model.openvino:
                other = OpenVino(openvino_python(self._home), path)
                stack.callback(other.close)
                print(f"{model.title}: {other.note}", flush=True)
                self._versions[OPENVINO] = other.note
            for work in works:
                busy = machine.busy()
                if busy is not None and busy > MOST_BUSY:
                    print(f"warning: others use {busy:.0%} of the machine", flush=True)
                pairs = self._pairs(path, work, other if other and other.runs else None)
                facts = {"file": path.name, "bytes": path.stat().st_size}
                if other is not None:
                    facts[OPENVINO] = other.note
                entries: dict[str, dict[str, Any]] = {
                    row: {
                        "run": self._time,
                        "busy": busy,
                        "work": asdict(work),
                        "pairs": {
                            name: [samples.get(row) if samples else None for samples in rounds]
                            for name, rounds in pairs.items()
                            if any(samples and row in samples for samples in rounds)
                        },
                    }
                    for row in work.rows
                }
                self._results.add(model.name, facts, entries)
                for row, entry in entries.items():
                    print(f"{model.title}: {row}: {brief(entry['pairs'])}", flush=True)

    def _describe(self, path: Path) -> None:
        """Notes the versions once; they need a model to ask for."""
        if not self._versions:
            version, info = system_info(llama_cpp_bin(self._home), path)
            print(f"llama.cpp {version}\n{info}", flush=True)
            has_amx = "amx_int8" in machine.machine()["flags"]
            if has_amx and "AMX_INT8 = 1" not in info:
                sys.exit("This processor has AMX, but llama.cpp was built without: no fair peer.")
            self._versions |= {
                SAMOVAR: version_of_samovar(),
                LLAMA_CPP: version,
                "llama.cpp system_info": info,
            }
        facts = {"threads": THREADS, "machine": machine.machine(), "versions": self._versions}
        self._results.add_run(self._time, facts)

    def _pairs(
        self, path: Path, work: Work, openvino: OpenVino | None
    ) -> dict[str, list[Samples | None]]:
        with ExitStack() as stack:
            contenders: list[Contender] = [self._samovar, *self._llama]
            measures: dict[str, Measure] = {}
            if work.kind == "http":
                prompts = Prompts(path, work.prompt)
                for each in contenders:
                    url = stack.enter_context(each.serve(work, path))
                    fields = each.server_fields
                    measures[each.name] = partial(measure_http, url, work, fields, prompts)
                    measures[each.name]()  # warms up
            else:
                measures = {each.name: partial(each.measure, work, path) for each in contenders}
            if ENGINE_ONE in work.rows:
                measures[SAMOVAR] = self._with_engine(measures[SAMOVAR], work, path)
            elif openvino is not None:
                measures[OPENVINO] = partial(openvino.measure, work)
            return interleave(measures, self._num_pairs)

    def _with_engine(self, over_http: Measure, work: Work, path: Path) -> Measure:
        """The same tokens without HTTP too, while the server is idle."""
        alone = replace(work, kind="decode", name=ENGINE_ONE)
        return lambda: {**over_http(), **self._samovar.measure(alone, path)}


def version_of_samovar() -> str:
    """The version, and the commit where there is one, `-dirty` if what was measured is another."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    commit, changes = (
        subprocess.run([*git, *command], capture_output=True, text=True, check=False).stdout.strip()
        for command in (
            ["describe", "--always"],
            ["status", "--porcelain", "--", "src", "native", "benchmarks"],
        )
    )
    return f"{__version__}, commit {commit}{'-dirty' if changes else ''}" if commit else __version__


def interleave(measures: dict[str, Measure], num_pairs: int) -> dict[str, list[Samples | None]]:
    """Each measurement in turn; of llama.cpp's settings only what is not clearly slower."""
    rounds: dict[str, list[Samples | None]] = {name: [] for name in measures}
    for _ in range(num_pairs):
        left_out = _clearly_slower({name: found[0] for name, found in rounds.items() if found})
        for name, measure in measures.items():
            rounds[name].append(None if name in left_out else measure())
    return rounds


def _clearly_slower(first: dict[str, Samples | None]) -> set[str]:
    """The settings of llama.cpp that another one of its settings beats in every row."""
    peers = {name: found for name, found in first.items() if found and name.startswith(LLAMA_CPP)}

    def beats(a: Samples, b: Samples) -> bool:
        return all(
            median(b[row]) > CLEARLY_SLOWER * median(a[row])
            if row in LOWER_IS_BETTER
            else median(a[row]) > CLEARLY_SLOWER * median(b[row])
            for row in a
        )

    return {name for name, b in peers.items() if any(beats(a, b) for a in peers.values())}


def brief(pairs: dict[str, list[Any]]) -> str:
    """Each contender's median."""
    found = {
        name: [median(samples) for samples in rounds if samples] for name, rounds in pairs.items()
    }
    return ", ".join(f"{name} {median(values):.4g}" for name, values in found.items())


def _end(*_: object) -> None:
    """Ends as Ctrl-C does, once, so that the servers end too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    started = time.monotonic()
    main()
    print(f"measured in {time.monotonic() - started:.0f} s")
