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
from pydantic_core import ErrorDetails, from_json

from samovar.engine.request import MAX_CHOICES, MAX_LOGPROBS, MIN_REPEAT_PENALTY
from samovar.errors import MissingField, RequestError, UnsupportedField
from samovar.server import values
from samovar.server.unbuilt import (
    CHAT_UNBUILT,
    NO_EFFECT,
    TEXT_UNBUILT,
    Unbuilt,
    refuse_unbuilt,
)

MAX_IGNORED_NAMES = 20  # of the fields that a header and a log line can name
MAX_IGNORED_NAME_CHARS = 64
# What a chat template gets from the request itself.
TEMPLATE_NAMES = frozenset({"add_generation_prompt", "documents", "messages", "self", "tools"})
PENALTY_NAMES = ("repeat_penalty", "repetition_penalty")
BOM = b"\xef\xbb\xbf"

Whole = Annotated[int, BeforeValidator(values.whole)]
Number = Annotated[float, BeforeValidator(values.number)]
Flag = Annotated[bool, Strict()]
MaxTokens = Annotated[int, BeforeValidator(values.max_tokens)]
NumChoices = Annotated[Whole, Field(ge=1, le=MAX_CHOICES)]
LogitBias = Annotated[tuple[tuple[int, float], ...], BeforeValidator(values.logit_bias)]


class StreamOptions(BaseModel):
    """What a stream carries beside the reply."""

    model_config = ConfigDict(frozen=True, extra="allow")
    include_usage: Flag | None = None


class GenerationFields(BaseModel):
    """What both completion endpoints share; None is what the request leaves to the settings."""

    model_config = ConfigDict(frozen=True, strict=True)
    UNBUILT: ClassVar[Mapping[str, Unbuilt]] = {}

    model: str | None = None
    n: NumChoices = 1
    max_tokens: MaxTokens | None = None
    logit_bias: LogitBias = ()
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
    seed: Annotated[int, BeforeValidator(values.seed)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(values.stop)] | None = None
    stream: Flag = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of the reply; 0 is the whole context, None leaves it to the settings."""
        return 0 if self.max_tokens == values.UNLIMITED else self.max_tokens

    @property
    def num_candidates(self) -> int:
        """How many replies are drawn for each prompt, of which the best n are shown."""
        return self.n

    @property
    def num_top(self) -> int | None:
        """Alternatives to tell with each token; None tells no log probabilities at all."""
        return None

    def sampling(self) -> dict[str, Any]:
        """The sampling fields under the names of SamplingParams."""
        return {
            "logit_bias": self.logit_bias,
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
    content: Annotated[str | None, BeforeValidator(values.content)]
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
    logprobs: Flag = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] = 0
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: Flag = True

    @property
    def token_limit(self) -> int | None:
        wins = self.max_completion_tokens
        limit = self.max_tokens if wins is None else wins
        return 0 if limit == values.UNLIMITED else limit

    @property
    def num_top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class TextFields(GenerationFields):
    """The body of POST /v1/completions."""

    UNBUILT: ClassVar[Mapping[str, Unbuilt]] = TEXT_UNBUILT

    prompt: Annotated[tuple[values.Prompt, ...], BeforeValidator(values.prompts)]
    max_tokens: Annotated[int, BeforeValidator(values.max_tokens_or_none)] | None = None
    best_of: NumChoices | None = None
    echo: Flag = False
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None, BeforeValidator(values.num_top)
    ] = None

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is to be generated."""
        return self.max_tokens == 0

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.n

    @property
    def num_top(self) -> int | None:
        return self.logprobs


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
    if fields.top_logprobs and not fields.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
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
    if fields.num_candidates < fields.n:
        raise RequestError("'best_of' must be at least 'n'.", param="best_of")
    if fields.num_candidates > fields.n and fields.stream:
        raise RequestError(
            "'best_of' cannot be streamed: which replies are the best is known at their end.",
            param="best_of",
        )
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
