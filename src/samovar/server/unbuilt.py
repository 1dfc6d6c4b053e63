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
    list: "an array",
    str: "a string",
}


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A recognised field.

    kinds: the JSON types that it may have.  harmless: values that ask for nothing.
    values_differ: some values are supported, so that another is an unsupported value rather than
    an unsupported parameter.
    """

    kinds: tuple[type, ...]
    harmless: tuple[Any, ...] = ()
    values_differ: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises UnsupportedField, or RequestError if the value would be wrong anywhere."""
        if type(value) not in self.kinds:
            kinds = " or ".join(_NAMES[kind] for kind in self.kinds)
            raise RequestError(f"'{name}' must be {kinds}.", param=name)
        if any(type(value) is type(ok) and value == ok for ok in self.harmless):
            return
        if self.values_differ:
            raise UnsupportedField(
                f"This value of '{name}' is not supported.", param=name, value=True
            )
        raise UnsupportedField(f"'{name}' is not supported.", param=name)


def refuse_unbuilt(given: Mapping[str, Any], table: Mapping[str, Unbuilt]) -> None:
    """Raises for the first field of `table` in a request that asks for something."""
    for name, value in given.items():
        if name in table:
            table[name].check(name, value)


CHAT_UNBUILT: Mapping[str, Unbuilt] = {
    "audio": Unbuilt((dict,)),
    "function_call": Unbuilt((str, dict), ("none", "auto"), values_differ=True),
    "functions": Unbuilt((list,), ([],)),
    "modalities": Unbuilt((list,), (["text"],), values_differ=True),
    "moderation": Unbuilt((dict,)),
    "reasoning_effort": Unbuilt((str,), ("none",)),
    "response_format": Unbuilt((dict,), ({"type": "text"},), values_differ=True),
    "tool_choice": Unbuilt((str, dict), ("none", "auto"), values_differ=True),
    "tools": Unbuilt((list,), ([],)),
    "verbosity": Unbuilt((str,), ("medium",), values_differ=True),
    "web_search_options": Unbuilt((dict,)),
}

TEXT_UNBUILT: Mapping[str, Unbuilt] = {
    "response_format": Unbuilt((dict,), ({"type": "text"},), values_differ=True),
    "suffix": Unbuilt((str,), ("",)),
}
