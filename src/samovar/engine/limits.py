"""What this machine can read and multiply at best, measured with an engine's own threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samovar import _native as native
from samovar.engine.load import LoadedModel
from samovar.models.program import RowType
from samovar.models.work import Line, OperationWork, StepWork, total

BUFFER_BYTES = 512 << 20  # more than caches hold
READ_S = 0.05
MULTIPLY_S = 0.03


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates a second, all threads together.

    memory_bytes_per_s: of reading memory that no cache holds, `memory_bytes` of it.
    weights_bytes_per_s: of reading as much as a step reads of the weights, `weights_bytes`, again
        and again: caches may hold some of it, as they do while the model runs.
    macs_per_s: products with their additions, by type of the activations.
    scaled_macs_per_s: of 8-bit ones whose sums over 32 are scaled; None without 8-bit activations.
    """

    memory_bytes: int
    memory_bytes_per_s: float
    weights_bytes: int
    weights_bytes_per_s: float
    macs_per_s: Mapping[RowType, float]
    scaled_macs_per_s: float | None

    def read_share(self, work: OperationWork, seconds: float) -> float:
        """The part of `seconds` that reading alone would have taken."""
        return work.num_bytes / self.weights_bytes_per_s / seconds

    def matmul_share(self, work: OperationWork, seconds: float) -> float:
        """The part of `seconds` that multiplying alone would have taken."""
        return sum(n / self.macs_per_s[type] for type, n in work.macs.items()) / seconds

    def seconds(self, work: OperationWork) -> float:
        """The least that an operation takes: it reads while it multiplies, and scales as well."""
        multiply_s = 0.0
        for type, count in work.macs.items():
            scaled = self.scaled_macs_per_s if type == "q8" else None
            multiply_s += count / (scaled or self.macs_per_s[type])
        return max(work.num_bytes / self.weights_bytes_per_s, multiply_s)

    def seconds_by_line(self, steps: Iterable[StepWork]) -> dict[Line, float]:
        """The least that the operations of each line take, one after the other."""
        seconds: defaultdict[Line, float] = defaultdict(float)
        for step in steps:
            for line, work in step:
                seconds[line] += self.seconds(work)
        return dict(seconds)


class LimitsProbe:
    """Takes samples, between measurements, and keeps the best of each.

    The best and not the median: a limit is what the machine can do when nobody disturbs it.
    """

    def __init__(self, model: LoadedModel) -> None:
        step = total([model.work.step([(0, 1)], num_logit_rows=1, kv=model.info.kv)])
        self._memory_bytes = max(1 << 20, min(BUFFER_BYTES, native.available_memory() // 4))
        self._weights_bytes = min(step.num_bytes, self._memory_bytes)
        self._native = native.Limits(model.pool, model.kernels, buffer_bytes=self._memory_bytes)
        self._read = {self._memory_bytes: 0.0, self._weights_bytes: 0.0}
        self._macs: dict[RowType, float] = dict.fromkeys(step.macs, 0.0)
        self._scaled: float | None = 0.0 if "q8" in step.macs else None

    def sample(self) -> None:
        """Measures everything once, in some tenths of a second."""
        for num_bytes, best in self._read.items():
            rate = self._native.read_bytes_per_s(nbytes=num_bytes, seconds=READ_S)
            self._read[num_bytes] = max(best, rate)
        for type, best in self._macs.items():
            rate = self._native.macs_per_s(type, seconds=MULTIPLY_S)
            self._macs[type] = max(best, rate)
        if self._scaled is not None:
            rate = self._native.scaled_macs_per_s(seconds=MULTIPLY_S)
            self._scaled = max(self._scaled, rate)

    def limits(self) -> Limits:
        """The best of the samples so far, of which there is at least one."""
        return Limits(
            memory_bytes=self._memory_bytes,
            memory_bytes_per_s=self._read[self._memory_bytes],
            weights_bytes=self._weights_bytes,
            weights_bytes_per_s=self._read[self._weights_bytes],
            macs_per_s=dict(self._macs),
            scaled_macs_per_s=self._scaled,
        )
