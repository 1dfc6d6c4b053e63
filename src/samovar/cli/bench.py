"""`samovar bench`: how fast a model runs on this machine, and how near to the machine's limits."""

from __future__ import annotations

import dataclasses
import json
import sys
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar import __version__
from samovar.cli.options import takes_settings
from samovar.cli.reply import find_model
from samovar.config import Settings
from samovar.errors import SettingError

if TYPE_CHECKING:
    from samovar.engine.limits import Limits
    from samovar.engine.load import LoadedModel
    from samovar.engine.measure import Decode, Prefill, Profile, Rounds
    from samovar.models.work import Line, StepWork

PREFILL = (128, 512, 2048)
DEPTHS = (0, 1024)
STREAMS = (1, 8, 16)
MAX_STREAMS = 4096
MAX_TOKENS = 2**31 - 1
NONE = "none"


def _sizes(default: tuple[int, ...], help: str) -> Any:
    shown = ",".join(map(str, default))
    return typer.Option(metavar="N,N,...", help=f"{help} Default: {shown}.", show_default=False)


@takes_settings(
    "model",
    "machine",
    without=("cache_dir", "cache_disk_gb", "chat_template", "speculate", "system"),
)
def bench(
    settings: Settings,
    prefill: Annotated[
        str | None, _sizes(PREFILL, "Lengths of prompts to read, in tokens; none: no prompts.")
    ] = None,
    depths: Annotated[
        str | None,
        _sizes(DEPTHS, "Lengths of the prompts that replies are written to; none: no replies."),
    ] = None,
    streams: Annotated[str | None, _sizes(STREAMS, "How many replies are written at once.")] = None,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_TOKENS, help="How many tokens of each reply."),
    ] = 64,
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

    Beside each figure stands its share of what the same threads can read and multiply at best,
    measured in the same run. Replies are written at each depth by the first number of streams, and
    by each number of streams at the first depth. Prompts are random, nothing is guessed ahead, and
    nothing is kept on disk.
    """
    cases = _Cases(
        prefill=_Sizes.read("--prefill", prefill, PREFILL, 1, MAX_TOKENS),
        depths=_Sizes.read("--depths", depths, DEPTHS, 0, MAX_TOKENS),
        streams=_Sizes.read("--streams", streams, STREAMS, 1, MAX_STREAMS),
        num_new=tokens,
    )
    if not cases.prefill.values and not cases.depths.values:
        raise SettingError("--prefill and --depths are none: there is nothing to measure.")
    name, model, chosen, rounds = _load(settings, cases)
    seconds, limits = _measure(model, rounds, chosen, repetitions)
    result = _describe(name, model) | {"repetitions": repetitions}
    result["limits"] = dataclasses.asdict(limits)
    result |= {"prefill": [], "decode": []}
    for case, own in seconds.items():
        result[case.kind].append(_figure(case, own, model, limits))
    if profile:
        result["profile"] = [
            {"case": str(case)}
            | _profile(rounds.profile(case), limits.seconds_by_line(_steps(case, model)))
            for case in _typical(chosen)
        ]
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        from samovar.cli.bench_report import print_report

        print_report(result)
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Sizes:
    """A list of numbers from the command line.  given: not the default, so none may be left out."""

    flag: str
    values: tuple[int, ...]
    given: bool

    @classmethod
    def read(
        cls, flag: str, text: str | None, default: tuple[int, ...], low: int, high: int
    ) -> _Sizes:
        if text is None:
            return cls(flag, default, given=False)
        if text == NONE and flag != "--streams":
            return cls(flag, (), given=True)
        values = []
        for part in text.split(","):
            part = part.strip()
            if not (part.isascii() and part.isdigit() and len(part) <= len(str(high))):
                raise SettingError(f"{flag} is {text!r}, but must be numbers like 128,512.")
            if not low <= int(part) <= high:
                raise SettingError(f"{flag} holds {part}, but must be from {low} to {high}.")
            values.append(int(part))
        return cls(flag, tuple(dict.fromkeys(values)), given=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Cases:
    """What is asked for."""

    prefill: _Sizes
    depths: _Sizes
    streams: _Sizes
    num_new: int

    def listed(self) -> list[tuple[Prefill | Decode, str | None]]:
        """All measurements; with each the flag that asks for it, None for a default."""
        from samovar.engine.measure import Decode, Prefill

        found: list[tuple[Prefill | Decode, str | None]] = [
            (Prefill(n), self.prefill.flag if self.prefill.given else None)
            for n in self.prefill.values
        ]
        pairs = [(depth, self.streams.values[0]) for depth in self.depths.values]
        pairs += [(depth, n) for depth in self.depths.values[:1] for n in self.streams.values[1:]]
        flag = self.depths.flag if self.depths.given else None
        return found + [(Decode(depth, n, self.num_new), flag) for depth, n in pairs]

    def that_fit(self, num_ctx: int, why: str) -> list[Prefill | Decode]:
        """The measurements for a context of num_ctx tokens.

        A default that needs more is left out; what was asked for is refused, and having none left.
        """
        listed = self.listed()
        fitting = [case for case, _ in listed if case.num_ctx <= num_ctx]
        for case, flag in listed:
            if case.num_ctx > num_ctx and (flag is not None or not fitting):
                raise SettingError(
                    f"{flag + ': ' if flag else ''}{case} needs a context of {case.num_ctx} "
                    f"tokens, but {why} {num_ctx}."
                )
        return fitting


def _load(
    settings: Settings, cases: _Cases
) -> tuple[str, LoadedModel, list[Prefill | Decode], Rounds]:
    """The model, in a context for all that is measured, and the measurements."""
    from samovar.checkpoint import open_checkpoint
    from samovar.cli.progress import progress_bar
    from samovar.engine.load import DEFAULT_MAX_CTX, load_model
    from samovar.engine.measure import Rounds

    found = find_model(settings)
    max_ctx = int(open_checkpoint(found.path).config["max_position_embeddings"])
    if settings.ctx:
        chosen = cases.that_fit(settings.ctx, f"{settings.source('ctx')} gives")
    else:
        chosen = cases.that_fit(max_ctx, "this model's maximum is")
    needed = max(case.num_ctx for case in chosen)
    options = dataclasses.replace(
        settings.engine_options(),
        ctx=settings.ctx or max(needed, min(max_ctx, DEFAULT_MAX_CTX)),
        max_sequences=max(case.streams for case in chosen),
        cache_dir=None,
    )
    with progress_bar() as progress:
        model = load_model(found.path, options, sha256=found.sha256, progress=progress)
    for case in chosen:
        if case.num_blocks > model.num_blocks:
            block_bytes = model.cache.block_bytes
            raise SettingError(
                f"{case} needs {case.num_blocks * block_bytes / 1e6:.0f} MB of KV cache, but "
                f"there is room for {model.num_blocks * block_bytes / 1e6:.0f} MB."
            )
    return found.id, model, chosen, Rounds(model, options)


def _measure(
    model: LoadedModel, rounds: Rounds, cases: list[Prefill | Decode], repetitions: int
) -> tuple[dict[Prefill | Decode, list[float]], Limits]:
    """The seconds of each measurement, and the limits of the machine in the same minutes.

    Each repetition goes over all of them, so that a busy moment of the machine hurts none alone.
    """
    from samovar.engine.limits import LimitsProbe
    from samovar.engine.measure import Prefill

    seconds: dict[Prefill | Decode, list[float]] = {case: [] for case in cases}
    probe = LimitsProbe(model)
    rounds.seconds(Prefill(min(model.info.batch, model.info.num_ctx)))  # touches all weights
    try:
        for repetition in range(repetitions):
            _tell(f"measuring, {repetition + 1} of {repetitions}")
            probe.sample()
            for case in cases:
                seconds[case].append(rounds.seconds(case))
    finally:
        _tell("")
    return seconds, probe.limits()


def _tell(text: str) -> None:
    """Shows one line on a terminal; one that moves would take time from what is measured."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def _describe(name: str, model: LoadedModel) -> dict[str, Any]:
    info = model.info
    return {
        "version": __version__,
        "model": name,
        "architecture": info.architecture,
        "parameters": info.num_parameters,
        "weight_bytes": info.weight_bytes,
        "isa": info.isa,
        "threads": info.threads,
        "kv": info.kv,
        "batch": info.batch,
        "context": info.num_ctx,
        "load_s": round(info.load_s, 4),
    }


def _figure(
    case: Prefill | Decode, seconds: list[float], model: LoadedModel, limits: Limits
) -> dict[str, Any]:
    """One line of the result; shares are those of the median."""
    from samovar.models.work import total

    steps = _steps(case, model)
    work = total(steps)
    rates = [case.num_tokens / s for s in seconds]
    middle = median(rates)
    middle_s = case.num_tokens / middle
    return {
        "case": str(case),
        **case.parameters,
        "tokens_per_s": round(middle, 2),
        "spread": round((max(rates) - min(rates)) / middle, 4),
        "samples": [round(rate, 2) for rate in rates],
        "bytes_per_token": round(work.num_bytes / case.num_tokens),
        "macs_per_token": round(sum(work.macs.values()) / case.num_tokens),
        "read_share": round(limits.read_share(work, middle_s), 4),
        "matmul_share": round(limits.matmul_share(work, middle_s), 4),
        "limit_share": round(sum(limits.seconds_by_line(steps).values()) / middle_s, 4),
    }


def _steps(case: Prefill | Decode, model: LoadedModel) -> list[StepWork]:
    return case.steps(model.work, kv=model.info.kv, batch=model.info.batch)


def _typical(cases: list[Prefill | Decode]) -> list[Prefill | Decode]:
    """Those to profile: the longest prompt, and replies that are alone, deepest and most."""
    chosen = []
    if prefills := [case for case in cases if case.kind == "prefill"]:
        chosen += [max(prefills, key=lambda case: case.num_ctx)]
    if decodes := [case for case in cases if case.kind == "decode"]:
        deepest = max(decodes, key=lambda case: case.num_ctx)
        chosen += [decodes[0], deepest, max(decodes, key=lambda case: case.streams)]
    return list(dict.fromkeys(chosen))


def _profile(profile: Profile, least_s: dict[Line, float]) -> dict[str, Any]:
    """least_s: by line, what the limits allow."""
    return {
        "wall_s": profile.wall_s,
        "shares": {kind: s / profile.wall_s for kind, s in profile.by_kind().items()},
        "operations": [
            dataclasses.asdict(row) | {"limit_s": least_s.get((row.kind, row.origin))}
            for row in profile.operations
        ],
        "sample_s": profile.sample_s,
        "between_s": profile.between_s,
        "python_s": profile.python_s,
    }
