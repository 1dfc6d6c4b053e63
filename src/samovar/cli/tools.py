"""`samovar bench`: how fast a model runs on this machine."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from samovar import __version__
from samovar.cli.options import takes_settings
from samovar.cli.reply import find_model, load_engine
from samovar.config import Settings
from samovar.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from samovar.engine.engine import Engine
    from samovar.hub import LocalModel

PREFILL_TOKENS = (128, 512)
DECODE_TOKENS = 128
DECODE_PROMPT_TOKENS = 32


@takes_settings("model", "machine")
def bench(
    settings: Settings,
    repetitions: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="How many; the median is shown.")
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Print the time by operation and line of the model."),
    ] = False,
) -> int:
    """Measure tokens per second of reading prompts (prefill) and of writing replies (decode).

    Replies to random prompts soon repeat themselves, which flatters guessing ahead: here
    `--speculate auto` guesses nothing.
    """
    if settings.speculate == "auto":
        settings = dataclasses.replace(settings, speculate="off")
    runner = None
    if profile:
        model, engine, runner = _timed_engine(settings)
    else:
        model, engine = load_engine(settings)
    sizes = [size for size in PREFILL_TOKENS if size < engine.info.num_ctx]
    decode_tokens = min(DECODE_TOKENS, engine.info.num_ctx - DECODE_PROMPT_TOKENS - 1)
    if not sizes or decode_tokens < 1:
        raise SettingError(f"A context of {engine.info.num_ctx} tokens is too short to measure.")
    rounds = _Rounds(engine)
    rounds.prefill(sizes[0])  # touches all weights once
    result: dict[str, Any] = {
        "version": __version__,
        "model": model.id,
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
    if runner is not None:
        result["profile"] = {
            f"prefill {sizes[-1]}": _profiled(runner, lambda: rounds.prefill(sizes[-1])),
            "decode": _profiled(runner, lambda: rounds.decode(decode_tokens)),
        }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print_result(result)
    return 0


class _Rounds:
    """Single measurements; every prompt is a new one, so that no cache of prefixes can help."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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

        numbers = random.Random()
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


class _TimedRunner:
    """A runner that knows how long its calls took; what a step takes beyond them is Python's."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.profile = runner.profile
        self.run_s = 0.0
        self.sample_s = 0.0

    def run(self, **arrays: Any) -> Any:
        started = time.perf_counter()
        result = self._runner.run(**arrays)
        self.run_s += time.perf_counter() - started
        return result

    def sample(self, **arrays: Any) -> Any:
        started = time.perf_counter()
        result = self._runner.sample(**arrays)
        self.sample_s += time.perf_counter() - started
        return result


def _timed_engine(settings: Settings) -> tuple[LocalModel, Engine, _TimedRunner]:
    from samovar.engine.engine import Engine
    from samovar.engine.load import load_model

    found = find_model(settings)
    options = settings.engine_options()
    model = load_model(found.path, options, sha256=found.sha256)
    runner = _TimedRunner(model.runner)
    engine = Engine(dataclasses.replace(model, runner=cast(Any, runner)), options)
    return found, engine, runner


def _profiled(runner: _TimedRunner, measure: Callable[[], float]) -> dict[str, Any]:
    """Where the time of one measurement goes.

    operations: by kind and line of the model.  handover_s: in the runner, but in no operation.
    python_s: neither in the runner nor in the sampler.
    """
    runner.profile(True)
    runner.run_s = runner.sample_s = 0.0
    started = time.perf_counter()
    measure()
    wall_s = time.perf_counter() - started
    rows: dict[tuple[str, str], list[int]] = {}
    for row in runner.profile(False):
        sums = rows.setdefault((row["kind"], row["origin"]), [0, 0])
        sums[0] += row["calls"]
        sums[1] += row["ns"]
    operations: list[dict[str, Any]] = [
        {"kind": kind, "origin": origin, "calls": calls, "seconds": ns / 1e9}
        for (kind, origin), (calls, ns) in sorted(rows.items(), key=lambda item: -item[1][1])
    ]
    return {
        "wall_s": wall_s,
        "operations": operations,
        "sample_s": runner.sample_s,
        "handover_s": runner.run_s - sum(operation["seconds"] for operation in operations),
        "python_s": wall_s - runner.run_s - runner.sample_s,
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
        add(row["kind"], row["origin"], str(row["calls"]), row["seconds"])
    add("sampling", "", "", profile["sample_s"])
    add("between operations", "", "", profile["handover_s"])
    add("Python", "", "", profile["python_s"])
    console.print()
    console.print(table, markup=False)
