"""The result of `samovar bench` for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from samovar.cli.table import print_table

ARITHMETIC = {"q8": "8-bit", "bf16": "bf16", "f32": "float32"}


def print_report(result: dict[str, Any]) -> None:
    """Writes the result to stdout as tables."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    limits = result["limits"]
    console.print(
        f"{result['model']}: {result['architecture']}, "
        f"{result['parameters'] / 1e6:.0f} million parameters, "
        f"{result['weight_bytes'] / 1e6:.0f} MB of weights, loaded in {result['load_s']:.2f} s"
    )
    console.print(
        f"{result['isa']}, {result['threads']} threads, KV {result['kv']}, "
        f"{result['batch']} tokens a step, context {result['context']}"
    )
    console.print(
        f"reads at best {limits['weights_bytes_per_s'] / 1e9:.1f} GB/s of the weights a step needs "
        f"({limits['weights_bytes'] / 1e6:.0f} MB), "
        f"{limits['memory_bytes_per_s'] / 1e9:.1f} GB/s of {limits['memory_bytes'] / 1e6:.0f} MB"
    )
    peaks = [f"{ARITHMETIC[kind]} {rate / 1e9:.0f}" for kind, rate in limits["macs_per_s"].items()]
    if limits["scaled_macs_per_s"] is not None:
        peaks.append(f"8-bit with scales {limits['scaled_macs_per_s'] / 1e9:.0f}")
    console.print(f"multiplies at best, in GMAC/s: {', '.join(peaks)}")
    console.print()
    print_table(_figures(result))
    for profile in result.get("profile", ()):
        console.print()
        console.print(_shares(profile))
        print_table(_operations(profile))


def _figures(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"median of {result['repetitions']}")
    for heading in ("tokens/s", "spread", "of read limit", "of matmul peak", "of limits"):
        table.add_column(heading, justify="right")
    for kind in ("prefill", "decode"):
        for figure in result[kind]:
            table.add_row(
                figure["case"],
                f"{figure['tokens_per_s']:.1f}",
                f"{figure['spread']:.0%}",
                f"{figure['read_share']:.0%}",
                f"{figure['matmul_share']:.0%}",
                f"{figure['limit_share']:.0%}",
            )
    return table


def _shares(profile: dict[str, Any]) -> str:
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in profile["shares"].items())
    return f"{profile['case']}: {profile['wall_s'] * 1000:.1f} ms; {shares}"


def _operations(profile: dict[str, Any]) -> Table:
    wall_s = profile["wall_s"]
    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    table.add_column("line")
    for heading in ("calls", "ms", "share", "of limit"):
        table.add_column(heading, justify="right")

    def add(
        kind: str, origin: str, calls: str, seconds: float, limit_s: float | None = None
    ) -> None:
        of_limit = "" if limit_s is None else f"{limit_s / seconds:.0%}"
        table.add_row(
            kind, origin, calls, f"{seconds * 1000:.2f}", f"{seconds / wall_s:.1%}", of_limit
        )

    for row in profile["operations"]:
        add(row["kind"], row["origin"], str(row["calls"]), row["seconds"], row["limit_s"])
    add("sampling", "", "", profile["sample_s"])
    add("between operations", "", "", profile["between_s"])
    add("Python", "", "", profile["python_s"])
    return table
