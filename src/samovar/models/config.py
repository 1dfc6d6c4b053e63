"""Typed reads of a model's configuration that refuse what is not implemented."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, Final

from samovar.errors import CheckpointError, UnsupportedModel

_REQUIRED: Final = object()  # no default: a missing or null key is an error
_MAX_HEAD_DIM: Final = 256  # of the attention kernels


class ConfigReader:
    """Reads keys of a `config.json`.  A null key counts as missing, as in Hugging Face's files.

    A value of the wrong type or out of range is a CheckpointError; a sound one that changes the
    mathematics in a way that is not built is UnsupportedModel.  Both name file and key.
    """

    def __init__(self, config: Mapping[str, Any], path: str, prefix: str = "") -> None:
        self._config = config
        self._path = path
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._config.get(key) is not None

    def int(
        self, key: str, default: Any = _REQUIRED, *, minimum: int = 1, maximum: int = 2**31 - 1
    ) -> int:
        """The integer at `key`, within [minimum, maximum]."""
        value = self._get(key, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self._bad(key, value, f"an integer from {minimum} to {maximum}")
        return value

    def float(
        self, key: str, default: Any = _REQUIRED, *, minimum: float = 1e-30, maximum: float = 1e12
    ) -> float:
        """The number at `key`, within [minimum, maximum]."""
        value = self._get(key, default)
        # A NaN is in no range.
        if type(value) not in (int, float) or not minimum <= value <= maximum:
            raise self._bad(key, value, f"a number from {minimum} to {maximum}")
        return float(value)

    def bool(self, key: str, default: Any = _REQUIRED) -> bool:
        """The truth value at `key`."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._bad(key, value, "true or false")
        return value

    def choice(self, key: str, options: tuple[str, ...], default: Any = _REQUIRED) -> str:
        """The text at `key`, one of `options`.  Raises UnsupportedModel for another one."""
        value = self._get(key, default)
        if type(value) is not str:
            raise self._bad(key, value, "a string")
        if value not in options:
            raise self.unsupported(key, f"is {value!r}; this version knows {', '.join(options)}")
        return value

    def choices(
        self, key: str, options: tuple[str, ...], *, count: builtins.int
    ) -> tuple[str, ...]:
        """The list of `count` texts at `key`, each one of `options`."""
        value = self._get(key, _REQUIRED)
        if type(value) is not list or len(value) != count:
            raise self._bad(key, value, f"a list of {count} strings")
        for item in value:
            if item not in options:
                raise self.unsupported(
                    key, f"holds {item!r}; this version knows {', '.join(options)}"
                )
        return tuple(value)

    def heads(
        self, hidden_size: builtins.int, *, head_dim: builtins.int | None = None
    ) -> tuple[builtins.int, builtins.int, builtins.int]:
        """Query heads, key-value heads, and dimensions of each, checked against one another.

        head_dim: where the file states none; else hidden_size is divided by the heads.
        """
        heads = self.int("num_attention_heads", maximum=1024)
        kv_heads = self.int("num_key_value_heads", heads, maximum=heads)
        if heads % kv_heads:
            raise self.unsupported(
                "num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads"
            )
        dim = self.int("head_dim", head_dim or hidden_size // heads)
        if dim % 32 or dim > _MAX_HEAD_DIM:
            raise self.unsupported(
                "head_dim", f"is {dim}; a multiple of 32 up to {_MAX_HEAD_DIM} is implemented"
            )
        return heads, kv_heads, dim

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse the model unless `key` is missing or has one of the values that are built in."""
        value = self._config.get(key)
        if value is not None and value not in allowed:
            known = " or ".join(repr(v) for v in allowed) or "absent"
            raise self.unsupported(key, f"is {_brief(value)}; only {known} is implemented")

    def section(self, key: str) -> ConfigReader | None:
        """The object at `key` as a reader of its own, or None if it is missing."""
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._bad(key, value, "an object")
        return ConfigReader(value, self._path, f"{self._prefix}{key}.")

    def unsupported(self, key: str, why: str) -> UnsupportedModel:
        """The error that names file and key: `raise c.unsupported("head_dim", "is 80; ...")`."""
        return UnsupportedModel(f"{self._path}: {self._prefix}{key} {why}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._config.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CheckpointError(f"{self._path}: {self._prefix}{key} is missing")
        return default

    def _bad(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: {self._prefix}{key} is {_brief(value)}, expected {expected}"
        )


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
