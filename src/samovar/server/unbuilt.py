"""Fields that the API knows and this server does not build: only harmless values pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samovar.errors import RequestError, UnsupportedField

# Accepted as they are: they concern accounts, storage and caches, never the reply.
NO_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

_NAMES = {
    bool: "a boolean",
    dict: "an object",
    int: "an integer",
    list: "an array",
    str: "a string",
}


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A recognised field.

    kinds: the JSON types that it may have.  harmless: values that ask for nothing.
    low, high: bounds of an integer.  values_differ: some values are supported, so that another is
    an unsupported value rather than an unsupported parameter.
    """

    kinds: tuple[type, ...]
    harmless: tuple[Any, ...] = ()
    low: int | None = None
    high: int | None = None
    values_differ: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises UnsupportedField, or RequestError if the value would be wrong anywhere."""
        whole = whole_number(value)
        if whole is not None:
            value = whole
        if type(value) not in self.kinds:
            kinds = " or ".join(_NAMES[kind] for kind in self.kinds)
            raise RequestError(f"'{name}' must be {kinds}.", param=name)
        if whole is not None:
            low, high = self.low, self.high
            if (low is not None and whole < low) or (high is not None and whole > high):
                raise RequestError(f"'{name}' must be from {low} to {high}.", param=name)
        if any(type(value) is type(ok) and value == ok for ok in self.harmless):
            return
        if self.values_differ:
            raise UnsupportedField(
                f"This value of '{name}' is not supported.", param=name, value=True
            )
        raise UnsupportedField(f"'{name}' is not supported.", param=name)


def whole_number(value: object) -> int | None:
    """The integer that a JSON value is, also when written as 64.0; None for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def refuse_unbuilt(given: Mapping[str, Any], table: Mapping[str, Unbuilt]) -> None:
    """Raises for the first field of `table` in a request that asks for something."""
    for name, value in given.items():
        if name in table:
            table[name].check(name, value)


_SHARED = {
    "logit_bias": Unbuilt((dict,), ({},)),
    "n": Unbuilt((int,), (1,), low=1, high=128, values_differ=True),
}

CHAT_UNBUILT: Mapping[str, Unbuilt] = {
    **_SHARED,
    "audio": Unbuilt((dict,)),
    "function_call": Unbuilt((str, dict), ("none", "auto"), values_differ=True),
    "functions": Unbuilt((list,), ([],)),
    "logprobs": Unbuilt((bool,), (False,)),
    "modalities": Unbuilt((list,), (["text"],), values_differ=True),
    "moderation": Unbuilt((dict,)),
    "reasoning_effort": Unbuilt((str,), ("none",)),
    "response_format": Unbuilt((dict,), ({"type": "text"},), values_differ=True),
    "tool_choice": Unbuilt((str, dict), ("none", "auto"), values_differ=True),
    "tools": Unbuilt((list,), ([],)),
    "top_logprobs": Unbuilt((int,), (0,), low=0, high=20),
    "verbosity": Unbuilt((str,), ("medium",), values_differ=True),
    "web_search_options": Unbuilt((dict,)),
}

TEXT_UNBUILT: Mapping[str, Unbuilt] = {
    **_SHARED,
    "best_of": Unbuilt((int,), (1,), low=1, high=20, values_differ=True),
    "echo": Unbuilt((bool,), (False,)),
    "logprobs": Unbuilt((int, bool), (False,), low=0, high=5),
    "response_format": Unbuilt((dict,), ({"type": "text"},), values_differ=True),
    "suffix": Unbuilt((str,), ("",)),
}
