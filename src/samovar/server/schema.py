"""Request bodies, parsed once into types that are valid by construction.

A field is one of four things: built (a field of the models here), recognised but not built (the
tables of `Unbuilt`: only values that change nothing pass), without effect by nature (`NO_EFFECT`),
or unknown: then its name is reported, so that nothing is ignored in silence. At the top level
null means "left out", as it does for the official clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from samovar.engine.request import MAX_STOP_STRINGS, MIN_REPEAT_PENALTY
from samovar.errors import MissingField, RequestError, UnsupportedField
from samovar.server.unbuilt import (
    CHAT_UNBUILT,
    NO_EFFECT,
    TEXT_UNBUILT,
    Unbuilt,
    refuse_unbuilt,
    whole_number,
)

MAX_PROMPTS = 2048
MAX_IGNORED_NAMES = 20  # of the fields that a header and a log line can name
MAX_IGNORED_NAME_CHARS = 64
MAX_TOKENS = 2**31 - 1
# What a chat template gets from the request itself.
TEMPLATE_NAMES = frozenset({"add_generation_prompt", "documents", "messages", "self", "tools"})
PENALTY_NAMES = ("repeat_penalty", "repetition_penalty")
BOM = b"\xef\xbb\xbf"

Prompt = str | tuple[int, ...]


def _wrong(expected: str) -> PydanticCustomError:
    return PydanticCustomError("wrong_value", "must be {expected}", {"expected": expected})


def _whole(value: object) -> int:
    whole = whole_number(value)
    if whole is None:
        raise _wrong("an integer")
    return whole


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong("a number of reasonable size") from None
    raise _wrong("a number")


def _max_tokens(value: object) -> int:
    """The bound, where 0 stands for none: the whole context."""
    count = _whole(value)
    if count == -1:
        return 0
    if count < 1:
        raise _wrong("at least 1, or -1 or null for as many as the context holds")
    return min(count, MAX_TOKENS)


def _seed(value: object) -> int:
    """Any 64-bit integer, signed or not, taken modulo 2^64."""
    seed = _whole(value)
    if not -(2**63) <= seed < 2**64:
        raise _wrong("a 64-bit integer")
    return seed % 2**64


def _stop(value: object) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise _wrong("a string or an array of strings")
    stops = tuple(dict.fromkeys(s for s in strings if s))
    if len(stops) > MAX_STOP_STRINGS:
        raise _wrong(f"at most {MAX_STOP_STRINGS} strings")
    return stops


def _content(value: object) -> str | None:
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


def _prompts(value: object) -> tuple[Prompt, ...]:
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


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, Strict()]
MaxTokens = Annotated[int, BeforeValidator(_max_tokens)]


class StreamOptions(BaseModel):
    """What a stream carries beside the reply."""

    model_config = ConfigDict(frozen=True, extra="allow")
    include_usage: Flag | None = None


class GenerationFields(BaseModel):
    """What both completion endpoints share; None is what the request leaves to the settings."""

    model_config = ConfigDict(frozen=True, strict=True)
    UNBUILT: ClassVar[Mapping[str, Unbuilt]] = {}

    model: str | None = None
    max_tokens: MaxTokens | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    min_p: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repeat_penalty: Annotated[Number, Field(ge=MIN_REPEAT_PENALTY, le=100)] | None = Field(
        None, validation_alias=AliasChoices(*PENALTY_NAMES)
    )
    repeat_last_n: Whole | None = None
    seed: Annotated[int, BeforeValidator(_seed)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop)] | None = None
    stream: Flag = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of the reply; 0 is the whole context, None leaves it to the settings."""
        return self.max_tokens

    def sampling(self) -> dict[str, float | int | None]:
        """The sampling fields under the names of SamplingParams."""
        return {
            "repeat_penalty": self.repeat_penalty,
            "repeat_last_n": self.repeat_last_n,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "top_p": self.top_p,
            "seed": self.seed,
        }


class Message(BaseModel):
    """One turn of a conversation; `content` is its text."""

    model_config = ConfigDict(frozen=True, extra="allow")
    # Echoed back by clients from replies; what they hold is never part of a prompt.
    SILENT: ClassVar[frozenset[str]] = frozenset({"annotations", "id"})

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_content)]
    name: Annotated[str, Strict()] | None = None
    tool_call_id: Annotated[str, Strict()] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatFields(GenerationFields):
    """The body of POST /v1/chat/completions."""

    UNBUILT: ClassVar[Mapping[str, Unbuilt]] = CHAT_UNBUILT

    messages: Annotated[list[Message], FailFast()]
    max_completion_tokens: MaxTokens | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: Flag = True

    @property
    def token_limit(self) -> int | None:
        wins = self.max_completion_tokens
        return self.max_tokens if wins is None else wins


class TextFields(GenerationFields):
    """The body of POST /v1/completions."""

    UNBUILT: ClassVar[Mapping[str, Unbuilt]] = TEXT_UNBUILT

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_prompts)]


# pydantic's words are Python's; a client speaks JSON.
_KINDS = {
    "bool_type": "a boolean",
    "dict_type": "an object",
    "list_type": "an array",
    "model_type": "an object",
    "string_type": "a string",
}

Fields = TypeVar("Fields", bound=GenerationFields)


def parse_chat(body: bytes) -> tuple[ChatFields, tuple[str, ...]]:
    """The request and the names of the fields that were ignored.  Raises RequestError."""
    fields, ignored, given = _parse(body, ChatFields)
    if not fields.messages:
        raise RequestError("'messages' must hold at least one message.", param="messages")
    for name in fields.chat_template_kwargs.keys() & TEMPLATE_NAMES:
        param = f"chat_template_kwargs.{name}"
        raise RequestError(f"'{param}' cannot be set here.", param=param)
    of_messages = []
    for i, (message, raw) in enumerate(zip(fields.messages, given["messages"], strict=True)):
        for name, value in (message.model_extra or {}).items():
            if not value or name in Message.SILENT:
                continue
            if name in ("tool_calls", "function_call", "audio"):
                param = f"messages[{i}].{name}"
                raise UnsupportedField(f"'{param}' is not supported yet.", param=param)
            of_messages.append(f"messages[{i}].{name}")
        if isinstance(raw["content"], list):
            of_messages += _unread_of_parts(raw["content"], f"messages[{i}].content")
    return fields, _shown((*ignored, *of_messages))


def parse_text(body: bytes) -> tuple[TextFields, tuple[str, ...]]:
    """The request and the names of the fields that were ignored.  Raises RequestError."""
    fields, ignored, _ = _parse(body, TextFields)
    return fields, _shown(ignored)


def _parse(body: bytes, kind: type[Fields]) -> tuple[Fields, tuple[str, ...], dict[str, Any]]:
    """The fields, the names of unknown ones, and all that was given as it stood."""
    try:
        # Refuses NaN, lone surrogates, bad UTF-8 and nesting that would exhaust the stack.
        raw = from_json(body.removeprefix(BOM), allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(raw, dict):
        raise RequestError("The body must be a JSON object.")
    if b"\\u0000" in body:
        _refuse_nul(raw)
    given = {name: value for name, value in raw.items() if value is not None}
    # For these two, null is a value: no stop strings, an empty prompt.
    given.update({name: "" for name in ("stop", "prompt") if name in raw and raw[name] is None})
    refuse_unbuilt(given, kind.UNBUILT)
    penalties = [given[name] for name in PENALTY_NAMES if name in given]
    if len(penalties) == 2 and penalties[0] != penalties[1]:
        raise RequestError(
            f"'{PENALTY_NAMES[1]}' is another name of '{PENALTY_NAMES[0]}'; here they differ.",
            param=PENALTY_NAMES[1],
        )
    try:
        fields = kind.model_validate(given)
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False)[0]) from None
    for name, value in (fields.stream_options.model_extra or {}).items():
        if value is not None and value is not False:
            param = f"stream_options.{name}"
            raise UnsupportedField(f"'{param}' is not supported.", param=param)
    known = kind.model_fields.keys() | kind.UNBUILT.keys() | NO_EFFECT | {*PENALTY_NAMES}
    return fields, tuple(name for name in given if name not in known), given


def _unread_of_parts(parts: list[dict[str, Any]], path: str) -> list[str]:
    return [
        f"{path}[{j}].{name}"
        for j, part in enumerate(parts)
        for name, value in part.items()
        if value and name not in ("type", "text")
    ]


def _shown(names: Sequence[str]) -> tuple[str, ...]:
    """The names, cut to what headers and log lines can carry."""
    shown = tuple(name[:MAX_IGNORED_NAME_CHARS] for name in names[:MAX_IGNORED_NAMES])
    more = len(names) - len(shown)
    return (*shown, f"and {more} more") if more else shown


def _request_error(error: ErrorDetails) -> RequestError:
    """The first error of a validation in our words, with the field's path."""
    context = error.get("ctx", {})
    param = _path(error["loc"]) + context.get("below", "")
    if error["type"] == "missing":
        return MissingField(f"Missing required parameter: '{param}'.", param=param)
    if error["type"] == "unsupported_value":
        return UnsupportedField(f"'{param}' {error['msg']}.", param=param, value=True)
    if error["type"] == "wrong_value":
        return RequestError(f"'{param}' {error['msg']}.", param=param)
    if error["type"] in _KINDS:
        return RequestError(f"'{param}' must be {_KINDS[error['type']]}.", param=param)
    reason = error["msg"].replace("Input should be", "must be")
    return RequestError(f"'{param}' {reason}.", param=param)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _refuse_nul(value: object) -> None:
    """Raises RequestError naming the first string, or name of a field, with a NUL in it.

    Iterators on a stack instead of recursion or paths: an item costs nothing for its depth.
    """
    path: list[int | str] = []
    levels = [_children(value)]
    while levels:
        for key, child in levels[-1]:
            if isinstance(key, str) and "\0" in key:
                raise _nul((*path, key.replace("\0", "\\u0000")))
            if isinstance(child, str):
                if "\0" in child:
                    raise _nul((*path, key))
            elif isinstance(child, (dict, list)):
                path.append(key)
                levels.append(_children(child))
                break
        else:
            levels.pop()
            if path:
                path.pop()


def _children(value: object) -> Iterator[tuple[int | str, object]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list) else iter(())


def _nul(path: tuple[int | str, ...]) -> RequestError:
    param = _path(path)
    return RequestError(f"'{param}' holds a NUL character.", param=param)
