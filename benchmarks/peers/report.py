"""Writes docs/benchmarks.md and its plots from the raw figures.

pip install matplotlib
python benchmarks/peers/report.py [--results docs/benchmarks/peers.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plots import plot_ratios, plot_streams
from results import LLAMA_CPP, OPENVINO, SAMOVAR, Comparison, Results, compare, typical
from rows import ENGINE_ONE, HTTP_ONE, LOWER_IS_BETTER, MANY, MODELS, ROWS, THREADS, Model
from run import CLEARLY_SLOWER, RESULTS

HOW = """\
## How it is measured

- One pair is one measurement of each program, one directly after the other; a row has at least
  five. The ratio is the median of the pairs' ratios, the range is from the smallest to the largest
  of them. The figures of each program are medians over the pairs. No measurement is left out: all
  are in [peers.json](benchmarks/peers.json).
- Everyone has {threads} threads, prompts of random tokens, 16 bits for each number of the KV cache
  (Samovar bf16, the others f16), and otherwise its defaults; Samovar guesses nothing ahead
  (`--speculate off`).
- llama.cpp is measured with flash attention on and off, and the better of the two counts in each
  row. One that lost a row's first pair by more than {slower:.0%} is left out of the other pairs.
  It is built for the processor at hand, with AMX where there is AMX.
- Engines: `llama-bench`, `llama-batched-bench` and `samovar_worker.py` run in a new process for
  each measurement and do not count loading. Samovar's figures include sampling and making text;
  those of llama.cpp's two programs do not. The batches start from prompts of 16 tokens.
- HTTP: the same client program sends {clients} requests at one moment to servers with {clients}
  slots, each with a prompt of its own of 128 tokens, and reads 64 tokens from each; the rate is all
  output tokens divided by the time until the last one is there. All servers run at once and are
  idle while it is not their turn. OpenVINO GenAI has no server of its own: in these rows its engine
  runs alone, given all prompts at once.
- 0.5B and 1B are files with random weights and the dimensions of Qwen2.5-0.5B and Llama-3.2-1B, in
  the architecture that all programs share (`random_model.py`): what they say is noise, what they
  cost is real.

## Repeating it

    pip install . matplotlib
    python benchmarks/peers/install.py
    python benchmarks/peers/run.py
    python benchmarks/peers/report.py

The first command needs a C++ compiler, the second CMake too. `install.py` puts everything under
`SAMOVAR_BENCH_HOME` or the platform's place for caches. `run.py --models 0.5b-q4_0 --works decode`
measures a part again and keeps the rest. Nothing else should run on the machine.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    results = Results(args.results)
    folder = args.results.parent
    plot_ratios(results.data, folder / "ratios.svg")
    plot_streams(results.data, folder / "streams.svg")
    page = folder.parent / "benchmarks.md"
    page.write_text("\n".join(_page(results.data)))
    print(page)


def _page(data: dict[str, Any]) -> Iterator[str]:
    measured = [model for model in MODELS if model.name in data["models"]]
    yield "# Samovar beside other programs\n"
    yield "<!-- Written by benchmarks/peers/report.py from benchmarks/peers.json. -->\n"
    yield from _setting(data)
    yield "\n## Beside llama.cpp\n"
    yield from _overview(data, measured)
    yield "\n![Ratios to llama.cpp of every pair](benchmarks/ratios.svg)\n"
    yield "![Decoding by number of streams](benchmarks/streams.svg)\n"
    yield "## Figures\n"
    yield "Tokens a second; the times to first token in seconds.\n"
    for model in measured:
        yield from _details(model, data["models"][model.name])
    yield from _one_stream(data, measured)
    yield HOW.format(threads=THREADS, clients=MANY, slower=CLEARLY_SLOWER - 1)


def _setting(data: dict[str, Any]) -> Iterator[str]:
    time, run = sorted(data["runs"].items())[-1]
    facts, versions = run["machine"], run["versions"]
    family, number, stepping = facts["cpu_family_model_stepping"]
    yield (
        f"{facts['cpu']} (family {family}, model {number}, stepping {stepping}), "
        f"{facts['cpus']} CPUs, {facts['memory_bytes'] / 2**30:.0f} GiB of memory, "
        f"Linux {facts['kernel']}, frequency governor {facts['governor'] or 'not visible'}, "
        f"transparent huge pages `{facts['transparent_huge_pages']}`; "
        f"measured on {time[:10]} with {run['threads']} threads.\n"
    )
    yield from _samovar_versions(data)
    yield f"- llama.cpp, {versions[LLAMA_CPP]}, which says of itself:\n"
    yield f"      {versions['llama.cpp system_info']}\n"
    notes = {run["versions"].get(OPENVINO) for run in data["runs"].values()} - {None}
    yield from (f"- {note}" for note in sorted(notes) if note.startswith("OpenVINO"))
    yield f"\nThe processor's own flags: {' '.join(facts['flags'])}."


def _samovar_versions(data: dict[str, Any]) -> Iterator[str]:
    """The version of the last run, and the rows that were measured with others."""
    *_, latest = sorted(data["runs"])
    own = {time: run["versions"][SAMOVAR] for time, run in data["runs"].items()}
    yield f"- Samovar {own[latest]}"
    others: dict[str, list[str]] = {}
    for model in MODELS:
        rows = data["models"].get(model.name, {"rows": {}})["rows"]
        for version in sorted({own[entry["run"]] for entry in rows.values()} - {own[latest]}):
            names = [row for row, entry in rows.items() if own[entry["run"]] == version]
            others.setdefault(version, []).append(f"{model.title} ({'; '.join(names)})")
    for version, where in others.items():
        yield f"  - {version}: {', '.join(where)}"


def _overview(data: dict[str, Any], models: list[Model]) -> Iterator[str]:
    yield (
        "How many times as fast as llama.cpp's best setting (for the time to first token: what "
        "part of its time), and the goal; bold where the goal is reached.\n"
    )
    yield "| | " + " | ".join(model.title for model in models) + " |"
    yield "|---" * (len(models) + 1) + "|"
    for row in ROWS:
        cells = []
        for model in models:
            entry = data["models"][model.name]["rows"].get(row)
            found = entry and compare(row, entry, LLAMA_CPP)
            cells.append(_goal(row, found, model.targets[row]) if found else "")
        yield f"| {row} | " + " | ".join(cells) + " |"


def _goal(row: str, found: Comparison, target: float) -> str:
    ratio = f"{found.ratio:.2f}"
    if found.reaches(row, target):
        ratio = f"**{ratio}**"
    return f"{ratio} ({min(found.ratios):.2f}-{max(found.ratios):.2f}), goal {target:g}"


def _details(model: Model, facts: dict[str, Any]) -> Iterator[str]:
    yield f"### {model.title}\n"
    yield f"`{facts['file']}`, {facts['bytes'] / 1e6:.0f} MB.\n"
    note = facts.get(OPENVINO)
    has_openvino = any(OPENVINO in entry["pairs"] for entry in facts["rows"].values())
    if note and not has_openvino:
        yield f"OpenVINO GenAI does not run it: {note}\n"
    head = ["", "Samovar", "llama.cpp", "flash attention", "ratio", "range", "pairs"]
    head += ["OpenVINO", "ratio", "range"] if has_openvino else []
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    for row in ROWS:
        entry = facts["rows"].get(row)
        found = entry and compare(row, entry, LLAMA_CPP)
        if entry is None or found is None:
            continue
        cells = [row, _number(row, found.ours), _number(row, found.theirs)]
        cells += [found.setting.rsplit(" ", 1)[-1], *_ratio(found), str(len(found.ratios))]
        if has_openvino:
            other = compare(row, entry, OPENVINO)
            cells += [_number(row, other.theirs), *_ratio(other)] if other else [""] * 3
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _ratio(found: Comparison) -> list[str]:
    return [f"{found.ratio:.2f}", f"{min(found.ratios):.2f}-{max(found.ratios):.2f}"]


def _number(row: str, value: float) -> str:
    if row in LOWER_IS_BETTER:
        return f"{value:.2f} s"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _one_stream(data: dict[str, Any], models: list[Model]) -> Iterator[str]:
    """What the way over HTTP costs a single stream."""
    rows = []
    for model in models:
        known = data["models"][model.name]["rows"]
        if HTTP_ONE in known and ENGINE_ONE in known:
            found = compare(HTTP_ONE, known[HTTP_ONE], LLAMA_CPP)
            engine = known[ENGINE_ONE]["pairs"][SAMOVAR]
            over_http = known[HTTP_ONE]["pairs"][SAMOVAR]
            if found is not None:
                share = typical(over_http, engine)
                cells = [model.title, f"{found.ours:.1f}", f"{share:.1%}"]
                rows.append([*cells, f"{found.theirs:.1f}", *_ratio(found)])
    if rows:
        yield "### One stream over HTTP\n"
        yield (
            "Tokens a second after the first one, prompts of 128 tokens; the share is that of "
            "Samovar's own engine, measured in the same pairs.\n"
        )
        yield "| | Samovar | share | llama.cpp | ratio | range |"
        yield "|---|---:|---:|---:|---:|---:|"
        yield from ("| " + " | ".join(cells) + " |" for cells in rows)
        yield ""


if __name__ == "__main__":
    main()
