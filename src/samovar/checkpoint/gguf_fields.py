"""Typed reads of GGUF metadata: the right type and range, or an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.errors import CheckpointError

Numbers: TypeAlias = NDArray[Any]
Value: TypeAlias = int | float | str | Numbers | list[str]


class Fields:
    """Reads of one file's metadata under an optional key prefix ("llama.").

    A default stands in for an absent key; without one, absence is an error.
    Raises CheckpointError.
    """

    def __init__(self, path: str, metadata: Mapping[str, Value], prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self._metadata = metadata

    def under(self, prefix: str) -> Fields:
        """The same metadata, read below `prefix`."""
        return Fields(self.path, self._metadata, prefix)

    def has(self, key: str) -> bool:
        return self.prefix + key in self._metadata

    def keys(self) -> list[str]:
        """The keys below the prefix, without it, in the order of the file."""
        size = len(self.prefix)
        return [key[size:] for key in self._metadata if key.startswith(self.prefix)]

    def get(self, key: str) -> Value | None:
        """Whatever is at `key`."""
        return self._metadata.get(self.prefix + key)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer at `key`, within [low, high]."""
        value = self._require(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self._bad(key, value, f"an integer from {low} to {high}")
        return value

    def layers_integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Like `integer`; an array of one for each layer is fine if all of them are equal."""
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return self.integer(key, low, high, default)
        numbers = self.integers(key, low, high)
        if len(set(numbers)) != 1:
            raise self.error(key, "differs between layers, which this architecture cannot have")
        return numbers[0]

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The number at `key`, within [low, high]; never NaN."""
        value = self._require(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, value, "a number")
        if not low <= value <= high:
            raise self._bad(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def truth(self, key: str, default: bool | None = None) -> bool:
        """The truth value at `key`."""
        value = self._require(key, default)
        if type(value) is not bool:
            raise self._bad(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`."""
        value = self._require(key, default)
        if type(value) is not str:
            raise self._bad(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        """The array of strings at `key`."""
        value = self._require(key, None)
        if not isinstance(value, list):
            raise self._bad(key, value, "an array of strings")
        return value

    def integers(self, key: str, low: int, high: int, *, count: int | None = None) -> list[int]:
        """The array of integers at `key`, each within [low, high]."""
        values = self._array(key, "iu", "an array of integers", count)
        bad = (values < low) | (values > high)
        if bad.any():
            at = int(np.argmax(bad))
            raise self.error(f"{key}[{at}]", f"found {values[at]}, expected {low} to {high}")
        return [*values.tolist()]

    def numbers(self, key: str, *, count: int | None = None) -> list[float]:
        """The array of finite floating-point numbers at `key`."""
        values = self._array(key, "f", "an array of floating-point numbers", count)
        bad = ~np.isfinite(values)
        if bad.any():
            at = int(np.argmax(bad))
            raise self.error(f"{key}[{at}]", f"found {values[at]}, expected a finite number")
        return [*values.tolist()]

    def error(self, key: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.prefix}{key}: {message}")

    def _array(self, key: str, kinds: str, expected: str, count: int | None) -> Numbers:
        value = self._require(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._bad(key, value, expected)
        if count is not None and value.size != count:
            raise self.error(key, f"has {value.size} entries, expected {count}")
        return value

    def _require(self, key: str, default: Value | None) -> Value:
        value = self._metadata.get(self.prefix + key, default)
        if value is None:
            raise self.error(key, "this key is missing")
        return value

    def _bad(self, key: str, value: Value, expected: str) -> CheckpointError:
        return self.error(key, f"found {brief(value)}, expected {expected}")


def brief(value: Value | None) -> str:
    """A metadata value on one short line."""
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
