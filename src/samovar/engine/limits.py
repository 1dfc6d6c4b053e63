"""What this machine can read and multiply at best, measured with an engine's own threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samovar import _native as native
from samovar.engine.load import LoadedModel
from samovar.models.program import RowType
from samovar.models.work import StepWork

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
    """

    memory_bytes: int
    memory_bytes_per_s: float
    weights_bytes: int
    weights_bytes_per_s: float
    macs_per_s: Mapping[RowType, float]

    def read_share(self, work: StepWork, seconds: float) -> float:
        """The part of `seconds` that reading alone would have taken."""
        return work.num_bytes / self.weights_bytes_per_s / seconds

    def matmul_share(self, work: StepWork, seconds: float) -> float:
        """The part of `seconds` that multiplying alone would have taken."""
        return sum(n / self.macs_per_s[type] for type, n in work.macs.items()) / seconds


class LimitsProbe:
    """Takes samples, between measurements, and keeps the best of each.

    The best and not the median: a limit is what the machine can do when nobody disturbs it.
    """

    def __init__(self, model: LoadedModel) -> None:
        step = model.work.step([(0, 1)], num_logit_rows=1, kv=model.info.kv)
        self._memory_bytes = max(1 << 20, min(BUFFER_BYTES, native.available_memory() // 4))
        self._weights_bytes = min(step.num_bytes, self._memory_bytes)
        self._native = native.Limits(model.pool, model.kernels, buffer_bytes=self._memory_bytes)
        self._read = {self._memory_bytes: 0.0, self._weights_bytes: 0.0}
        self._macs: dict[RowType, float] = dict.fromkeys(step.macs, 0.0)

    def sample(self) -> None:
        """Measures everything once, in some tenths of a second."""
        for num_bytes, best in self._read.items():
            rate = self._native.read_bytes_per_s(nbytes=num_bytes, seconds=READ_S)
            self._read[num_bytes] = max(best, rate)
        for type, best in self._macs.items():
            rate = self._native.macs_per_s(type, seconds=MULTIPLY_S)
            self._macs[type] = max(best, rate)

    def limits(self) -> Limits:
        """The best of the samples so far, of which there is at least one."""
        return Limits(
            memory_bytes=self._memory_bytes,
            memory_bytes_per_s=self._read[self._memory_bytes],
            weights_bytes=self._weights_bytes,
            weights_bytes_per_s=self._read[self._weights_bytes],
            macs_per_s=dict(self._macs),
        )
