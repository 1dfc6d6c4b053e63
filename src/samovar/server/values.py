"""Values of request bodies: each read once, leniently where that is harmless."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from samovar.engine.request import MAX_STOP_STRINGS

MAX_PROMPTS = 2048
MAX_TOKENS = 2**31 - 1
MAX_BIASES = 1024  # each costs time in every step, and there the others wait
UNLIMITED = -1

Prompt = str | tuple[int, ...]


def _wrong(expected: str) -> PydanticCustomError:
    return PydanticCustomError("wrong_value", "must be {expected}", {"expected": expected})


def whole(value: object) -> int:
    """An integer, also when written as 64.0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _wrong("an integer")


def number(value: object) -> float:
    """A number that a double can hold."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong("a number of reasonable size") from None
    raise _wrong("a number")


def max_tokens(value: object) -> int:
    """The bound of a reply, or UNLIMITED."""
    count = whole(value)
    if count != UNLIMITED and count < 1:
        raise _wrong("at least 1, or -1 or null for as many as the context holds")
    return min(count, MAX_TOKENS)


def max_tokens_or_none(value: object) -> int:
    """The same where a reply may also be empty."""
    count = whole(value)
    if count < UNLIMITED:
        raise _wrong("at least 0, or -1 or null for as many as the context holds")
    return min(count, MAX_TOKENS)


def seed(value: object) -> int:
    """Any 64-bit integer, signed or not, taken modulo 2^64."""
    given = whole(value)
    if not -(2**63) <= given < 2**64:
        raise _wrong("a 64-bit integer")
    return given % 2**64


def stop(value: object) -> tuple[str, ...]:
    """The strings that end a reply, each once."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise _wrong("a string or an array of strings")
    stops = tuple(dict.fromkeys(s for s in strings if s))
    if len(stops) > MAX_STOP_STRINGS:
        raise _wrong(f"at most {MAX_STOP_STRINGS} strings")
    return stops


def logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """Tokens and what is added to their logits."""
    if not isinstance(value, Mapping):
        raise _wrong("an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise _wrong(f"an object of at most {MAX_BIASES} token ids")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        # int() would also take "1_0", " 1" and digits of other scripts.
        if not (key.isascii() and key.isdecimal() and len(key) < 10) or int(key) in biases:
            raise _wrong("an object whose keys are token ids, each once")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise _wrong("an object whose values are numbers from -100 to 100")
        biases[int(key)] = float(bias)
    return tuple(biases.items())


def num_top(value: object) -> int | None:
    """`logprobs` of a text: how many alternatives, where false stands for no log probabilities."""
    return None if value is False else whole(value)


def content(value: object) -> str | None:
    """The text of a message; parts are joined by line ends."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong("a string, null, or an array of text parts")
    return "\n".join(_part(i, part) for i, part in enumerate(value))


def _part(i: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise PydanticCustomError(
            "wrong_value", "must be an object with a type", {"below": f"[{i}]"}
        )
    if kind != "text":
        raise PydanticCustomError(
            "unsupported_value",
            "is a part of type '{kind}'; this server reads text parts only",
            {"below": f"[{i}]", "kind": kind[:100]},
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise PydanticCustomError("wrong_value", "must be a string", {"below": f"[{i}].text"})
    return text


def prompts(value: object) -> tuple[Prompt, ...]:
    """The four forms of a prompt as one: a tuple of strings and of tuples of token ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _wrong("a string, an array of strings or token ids, or an array of such arrays")
    if not value or _is_id(value[0]):
        return (_token_ids(value, ""),)
    if len(value) > MAX_PROMPTS:
        raise _wrong(f"at most {MAX_PROMPTS} prompts")
    first = type(value[0])
    prompts: list[Prompt] = []
    for i, prompt in enumerate(value):
        if not isinstance(prompt, (str, list)) or type(prompt) is not first:
            raise PydanticCustomError(
                "wrong_value",
                "must be a string or an array of token ids, like the other prompts",
                {"below": f"[{i}]"},
            )
        prompts.append(prompt if isinstance(prompt, str) else _token_ids(prompt, f"[{i}]"))
    return tuple(prompts)


def _token_ids(ids: list[object], below: str) -> tuple[int, ...]:
    if not all(map(_is_id, ids)):
        wrong = next(i for i, token in enumerate(ids) if not _is_id(token))
        raise PydanticCustomError(
            "wrong_value", "must be a token id", {"below": f"{below}[{wrong}]"}
        )
    return tuple(ids)  # type: ignore[arg-type]


def _is_id(value: object) -> bool:
    return type(value) is int  # a bool is none
