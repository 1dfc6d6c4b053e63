"""What the API knows and this server does not build: refused by name.

Of fields harmless values pass.
"""

from __future__ import annotations

import json
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

MAX_SHOWN_CHARS = 100  # of a value that a message quotes

# By the first part of their paths, without /v1.
_ENDPOINTS = {
    "apply-template": "Applying templates is",
    "audio": "Audio is",
    "batches": "Batches are",
    "detokenize": "Detokenizing is",
    "embeddings": "Embeddings are",
    "files": "Files are",
    "fine_tuning": "Fine-tuning is",
    "images": "Images are",
    "messages": "Anthropic's Messages API is",
    "metrics": "Metrics are",
    "moderations": "Moderations are",
    "realtime": "The Realtime API is",
    "rerank": "Reranking is",
    "responses": "The Responses API is",
    "tokenize": "Tokenizing is",
}

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
        passing = " or ".join(map(json.dumps, self.harmless))
        if self.values_differ:
            raise UnsupportedField(
                f"{_shown(value)} is not supported as '{name}'; supported: {passing}.",
                param=name,
                value=True,
            )
        advice = f"leave it out or send {passing}" if passing else "leave it out"
        raise UnsupportedField(f"'{name}' is not supported; {advice}.", param=name)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."


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


def unbuilt_endpoint(path: str) -> str | None:
    """Why a path, without /v1, is not served, if it is one that clients of the API know."""
    name = _ENDPOINTS.get(path.split("/")[1])
    return name and f"{name} not built in this version"
