"""`samovar bench`: how fast a model runs on this machine."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar import __version__
from samovar.cli.options import takes_settings
from samovar.cli.reply import load_engine
from samovar.config import Settings
from samovar.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from samovar.engine.engine import Engine

PREFILL_TOKENS = (128, 512)
DECODE_TOKENS = 128
DECODE_PROMPT_TOKENS = 32


@takes_settings("model", "machine")
def bench(
    settings: Settings,
    repetitions: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="The median of that many is shown.")
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Print the time by operation and line of the model."),
    ] = False,
) -> int:
    """Measure tokens per second of reading prompts (prefill) and of writing replies (decode)."""
    engine = load_engine(settings)
    sizes = [size for size in PREFILL_TOKENS if size < engine.info.num_ctx]
    decode_tokens = min(DECODE_TOKENS, engine.info.num_ctx - DECODE_PROMPT_TOKENS - 1)
    if not sizes or decode_tokens < 1:
        raise SettingError(f"A context of {engine.info.num_ctx} tokens is too short to measure.")
    rounds = _Rounds(engine)
    rounds.prefill(sizes[0])  # touches all weights once
    result: dict[str, Any] = {
        "version": __version__,
        "model": engine.info.path.name,
        "architecture": engine.info.architecture,
        "parameters": engine.info.num_parameters,
        "isa": engine.info.isa,
        "threads": engine.info.threads,
        "kv": engine.info.kv,
        "batch": engine.info.batch,
        "load_s": round(engine.info.load_s, 4),
        "repetitions": repetitions,
        "prefill_tokens_per_s": {
            str(size): round(median(rounds.prefill(size) for _ in range(repetitions)), 2)
            for size in sizes
        },
        "decode_tokens_per_s": round(
            median(rounds.decode(decode_tokens) for _ in range(repetitions)), 2
        ),
    }
    if profile:
        result["profile"] = {
            f"prefill {sizes[-1]}": _profiled(engine, lambda: rounds.prefill(sizes[-1])),
            "decode": _profiled(engine, lambda: rounds.decode(decode_tokens)),
        }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print_result(result)
    return 0


class _Rounds:
    """Single measurements; every prompt differs, so that no cache of prefixes can help."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0

    def prefill(self, num_tokens: int) -> float:
        """Prompt tokens read a second."""
        times = self._run(num_tokens, max_tokens=1)
        return num_tokens / (times[-1] - times[0])

    def decode(self, num_tokens: int) -> float:
        """Reply tokens written a second after the first one."""
        times = self._run(DECODE_PROMPT_TOKENS, max_tokens=num_tokens + 1)
        return num_tokens / (times[-1] - times[1])

    def _run(self, num_prompt: int, *, max_tokens: int) -> list[float]:
        """The moment of submission, then that of each token."""
        from samovar.engine.request import Request, SamplingParams

        self._count += 1
        numbers = random.Random(self._count)
        vocab_size = self._engine.tokenizer.vocab_size
        request = Request(
            id="bench",
            prompt=tuple(numbers.randrange(vocab_size) for _ in range(num_prompt)),
            sampling=SamplingParams(),
            max_tokens=max_tokens,
        )
        times = [time.perf_counter()]
        for _, delta in self._engine.generate([request]):
            if delta.error is not None:
                raise RuntimeError(delta.error)
            times.append(time.perf_counter())
        return times


def _profiled(engine: Engine, measure: Callable[[], float]) -> dict[str, Any]:
    """Where the time of one measurement goes: rows of (kind, origin), and what is left over.

    `outside_s` is everything but the native operations: Python, sampling, handing work to threads.
    """
    engine.profile(False)
    engine.profile(True)
    started = time.perf_counter()
    measure()
    wall_s = time.perf_counter() - started
    rows = engine.profile(False)
    native_s = sum(row["ns"] for row in rows) / 1e9
    return {
        "wall_s": round(wall_s, 6),
        "outside_s": round(wall_s - native_s, 6),
        "operations": sorted(rows, key=lambda row: -row["ns"]),
    }


def _print_result(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"{result['model']}, {result['architecture']}, "
        f"{result['parameters'] / 1e6:.0f} million parameters",
        markup=False,
    )
    console.print(
        f"{result['isa']}, {result['threads']} threads, KV {result['kv']}, "
        f"{result['batch']} tokens a step, loaded in {result['load_s']:.2f} s",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("median of " + str(result["repetitions"]))
    table.add_column("tokens/s", justify="right")
    for size, speed in result["prefill_tokens_per_s"].items():
        table.add_row(f"prefill {size}", f"{speed:.1f}")
    table.add_row("decode", f"{result['decode_tokens_per_s']:.1f}")
    console.print(table)
    for title, profile in result.get("profile", {}).items():
        _print_profile(console, title, profile)


def _print_profile(console: Console, title: str, profile: dict[str, Any]) -> None:
    from rich.table import Table

    wall_s = profile["wall_s"]
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{title}: {wall_s * 1000:.1f} ms")
    table.add_column("origin")
    for heading in ("calls", "ms", "share"):
        table.add_column(heading, justify="right")

    def add(kind: str, origin: str, calls: str, seconds: float) -> None:
        table.add_row(kind, origin, calls, f"{seconds * 1000:.2f}", f"{seconds / wall_s:.1%}")

    for row in profile["operations"]:
        add(row["kind"], row["origin"], str(row["calls"]), row["ns"] / 1e9)
    add("outside of operations", "Python, sampling", "", profile["outside_s"])
    console.print()
    console.print(table, markup=False)
