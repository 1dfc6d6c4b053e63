"""Rotary position embeddings: the inverse frequencies, the same bits on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samovar.models.config import ConfigReader

# Powers by libm or numpy may differ in the last bit from CPU to CPU; decimal is plain software.
_EXACT = Context(prec=40)
_TWO_PI = Decimal("6.283185307179586476925286766559005768394")


@dataclass(frozen=True, slots=True)
class Rope:
    """How q and k are rotated: frequency i is theta ** (-2i / dim), then scaled.

    dim: rotated dimensions of a head, even.
    factor: divides all frequencies ("linear"), or the low ones only ("llama3").
    low_freq_factor, high_freq_factor, original_context: between the wavelengths
    original_context / high and / low the llama3 scaling blends from none to full; 0 for "linear".
    Source: Su et al. 2021, arXiv:2104.09864; Llama 3.1 (transformers, rope type "llama3").
    """

    theta: float
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_context: int = 0

    @classmethod
    def read(cls, c: ConfigReader, dim: int, *, theta: float) -> Self:
        """The rotation that rope_theta and rope_scaling state, or the newer rope_parameters.

        theta: where the configuration states none.
        """
        parameters = c.section("rope_parameters")
        if parameters is not None:
            return cls.of(parameters, dim, theta=theta)
        return cls.of(
            c.section("rope_scaling"), dim, theta=c.float("rope_theta", theta, minimum=1.0)
        )

    @classmethod
    def of(cls, parameters: ConfigReader | None, dim: int, *, theta: float) -> Self:
        """The rotation that one section of the configuration states; None is unscaled."""
        if parameters is None:
            return cls(theta, dim)
        p = parameters
        p.require("partial_rotary_factor", 1.0)
        theta = p.float("rope_theta", theta, minimum=1.0)
        key = "type" if p.has("type") and not p.has("rope_type") else "rope_type"
        kind = p.choice(key, ("default", "linear", "llama3"), "default")
        if kind == "default":
            return cls(theta, dim)
        factor = p.float("factor", minimum=1.0)
        if kind == "linear":
            return cls(theta, dim, factor)
        low, high = p.float("low_freq_factor"), p.float("high_freq_factor")
        if low >= high:
            raise p.unsupported("low_freq_factor", f"is {low}, not below high_freq_factor {high}")
        return cls(theta, dim, factor, low, high, p.int("original_max_position_embeddings"))

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """Radians for each position, [dim / 2]; correctly rounded from 40 decimal digits."""
        log_theta = _EXACT.ln(Decimal(self.theta))
        exponents = (
            _EXACT.divide(Decimal(-2 * i), Decimal(self.dim)) for i in range(self.dim // 2)
        )
        frequencies = (_EXACT.exp(_EXACT.multiply(log_theta, e)) for e in exponents)
        return np.array([float(self._scale(f)) for f in frequencies], dtype=np.float64)

    def _scale(self, frequency: Decimal) -> Decimal:
        scaled = _EXACT.divide(frequency, Decimal(self.factor))
        if self.original_context == 0:
            return scaled
        # Rotations of this frequency within the context that the model was first trained on.
        turns = _EXACT.divide(_EXACT.multiply(frequency, self.original_context), _TWO_PI)
        low, high = Decimal(self.low_freq_factor), Decimal(self.high_freq_factor)
        if turns >= high:
            return frequency
        if turns <= low:
            return scaled
        keep = _EXACT.divide(_EXACT.subtract(turns, low), _EXACT.subtract(high, low))
        blurred = _EXACT.multiply(_EXACT.subtract(1, keep), scaled)
        return _EXACT.add(blurred, _EXACT.multiply(keep, frequency))
