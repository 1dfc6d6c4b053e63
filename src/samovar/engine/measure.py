"""Timed runs of an engine: reading prompts, and writing replies at a depth, one or many at once."""

from __future__ import annotations

import dataclasses
import random
import time
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from samovar.engine.blocks import blocks_for
from samovar.engine.engine import Engine
from samovar.engine.load import EngineOptions, LoadedModel
from samovar.engine.request import Request, SamplingParams
from samovar.models.work import StepWork, Work


@dataclass(frozen=True, slots=True)
class Prefill:
    """Reading one prompt."""

    num_tokens: int
    kind: ClassVar[str] = "prefill"

    def __str__(self) -> str:
        return f"prefill {self.num_tokens}"

    @property
    def parameters(self) -> dict[str, int]:
        return {"tokens": self.num_tokens}

    @property
    def streams(self) -> int:
        return 1

    @property
    def num_ctx(self) -> int:
        """The context that it needs."""
        return self.num_tokens

    @property
    def num_blocks(self) -> int:
        """The blocks of the KV cache that it needs."""
        return blocks_for(self.num_ctx)

    def steps(self, model: Work, *, kv: str, batch: int) -> list[StepWork]:
        """What its steps have to read and to multiply, `batch` tokens in each."""
        steps = []
        for start in range(0, self.num_tokens, batch):
            count = min(batch, self.num_tokens - start)
            last = start + count == self.num_tokens
            steps.append(model.step([(start, count)], num_logit_rows=int(last), kv=kv))
        return steps


@dataclass(frozen=True, slots=True)
class Decode:
    """Writing `num_new` tokens of each of `streams` replies at once, to prompts of `depth` tokens.

    Depth 0 stands for a prompt of one token, since there must be one to begin with.
    """

    depth: int
    streams: int
    num_new: int
    kind: ClassVar[str] = "decode"

    def __str__(self) -> str:
        streams = "" if self.streams == 1 else f", {self.streams} streams"
        return f"decode at depth {self.depth}{streams}"

    @property
    def parameters(self) -> dict[str, int]:
        return {"depth": self.depth, "streams": self.streams, "tokens": self.num_new}

    @property
    def num_tokens(self) -> int:
        return self.num_new * self.streams

    @property
    def num_prompt(self) -> int:
        return max(1, self.depth)

    @property
    def num_ctx(self) -> int:
        """The context that it needs: the first token of a reply comes before the clock starts."""
        return self.num_prompt + 1 + self.num_new

    @property
    def num_blocks(self) -> int:
        """The blocks of the KV cache that it needs."""
        return self.streams * blocks_for(self.num_ctx)

    def steps(self, model: Work, *, kv: str, batch: int) -> list[StepWork]:
        """What its steps have to read and to multiply."""
        return [
            model.step([(position, 1)] * self.streams, num_logit_rows=self.streams, kv=kv)
            for position in range(self.num_prompt, self.num_prompt + self.num_new)
        ]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """The time of all operations of one kind that one line of the model made.

    Operations that are computed together, row by row, are one: their kinds and lines, with commas.
    """

    kind: str
    origin: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of one run went, in seconds.

    operations: longest first.  sample_s: choosing tokens.
    between_s: in the native step, but in no operation.  python_s: all the rest.
    """

    wall_s: float
    operations: tuple[ProfileRow, ...]
    sample_s: float
    between_s: float
    python_s: float

    def by_kind(self) -> dict[str, float]:
        """The time of linear, attention and other operations, and what is beside them."""
        classes = {"linear": "linear", "gated_linear": "linear", "attention": "attention"}
        seconds = {"linear": 0.0, "attention": 0.0, "other operations": 0.0}
        for row in self.operations:
            seconds[classes.get(row.kind, "other operations")] += row.seconds
        beside = {"sampling": self.sample_s, "between": self.between_s, "Python": self.python_s}
        return seconds | beside


class Rounds:
    """Runs cases on one model; nothing is guessed ahead, and every prompt is a new one."""

    def __init__(self, model: LoadedModel, options: EngineOptions) -> None:
        self._runner = _TimedRunner(model.runner)
        timed = dataclasses.replace(model, runner=cast(Any, self._runner))
        self._engine = Engine(timed, dataclasses.replace(options, speculate="off"))
        self._numbers = random.Random(0)

    def seconds(self, case: Prefill | Decode) -> float:
        """How long the case takes."""
        return self._time(case)

    def profile(self, case: Prefill | Decode) -> Profile:
        """Where the time of the case goes."""
        wall_s = self._time(case, profile=True)
        return self._runner.profile_of(wall_s)

    def _time(self, case: Prefill | Decode, *, profile: bool = False) -> float:
        try:
            self._prepare(case)
            self._runner.begin(profile)
            started = time.perf_counter()
            while not self._engine.is_idle:
                self._step()
            wall_s = time.perf_counter() - started
            self._runner.end()
            return wall_s
        finally:
            self._engine.abort_all()
            self._engine.forget()

    def _prepare(self, case: Prefill | Decode) -> None:
        """Goes as far as where the clock starts."""
        if isinstance(case, Prefill):
            self._submit([self._prompt(case.num_tokens)], prompt_only=True)
            return
        prompts = [self._prompt(case.num_prompt) for _ in range(case.streams)]
        if case.num_prompt > 1:
            # What is read now is found in the cache then, so that all replies begin in one step.
            self._submit(prompts, prompt_only=True)
            while not self._engine.is_idle:
                self._step()
        waiting = self._submit(prompts, max_tokens=case.num_new + 1)
        while waiting:
            waiting -= self._step()

    def _submit(self, prompts: list[tuple[int, ...]], **fields: Any) -> set[str]:
        requests = [
            Request(id=str(i), prompt=prompt, sampling=SamplingParams(), **fields)
            for i, prompt in enumerate(prompts)
        ]
        for request in requests:
            self._engine.submit(request)
        return {request.id for request in requests}

    def _step(self) -> set[str]:
        """The requests that gained a token."""
        deltas = self._engine.step() or []
        for _, delta in deltas:
            if delta.error is not None:
                raise RuntimeError(delta.error)
        return {request_id for request_id, _ in deltas}

    def _prompt(self, num_tokens: int) -> tuple[int, ...]:
        vocab_size = self._engine.tokenizer.vocab_size
        return tuple(self._numbers.randrange(vocab_size) for _ in range(num_tokens))


class _TimedRunner:
    """A runner that knows how long its calls took; what a step takes beyond them is Python's."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._run_s = 0.0
        self._sample_s = 0.0
        self._rows: list[dict[str, Any]] = []

    def begin(self, profile: bool) -> None:
        """Starts from zero; `profile`: with the time of each operation."""
        self._run_s = self._sample_s = 0.0
        self._runner.profile(profile)

    def end(self) -> None:
        """Keeps what was noted since the beginning."""
        self._rows = self._runner.profile(False)

    def profile_of(self, wall_s: float) -> Profile:
        """What was noted, of `wall_s` seconds in all."""
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for row in self._rows:
            key = (row["kind"], row["origin"])
            calls, seconds = sums.get(key, (0, 0.0))
            sums[key] = (calls + row["calls"], seconds + row["ns"] / 1e9)
        operations = [ProfileRow(*key, *own) for key, own in sums.items()]
        return Profile(
            wall_s=wall_s,
            operations=tuple(sorted(operations, key=lambda row: -row.seconds)),
            sample_s=self._sample_s,
            between_s=self._run_s - sum(row.seconds for row in operations),
            python_s=wall_s - self._run_s - self._sample_s,
        )

    def run(self, **arrays: Any) -> Any:
        started = time.perf_counter()
        result = self._runner.run(**arrays)
        self._run_s += time.perf_counter() - started
        return result

    def sample(self, **arrays: Any) -> Any:
        started = time.perf_counter()
        result = self._runner.sample(**arrays)
        self._sample_s += time.perf_counter() - started
        return result
