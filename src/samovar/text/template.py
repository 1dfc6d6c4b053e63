"""Conversations to prompt tokens, by a chat template.

What comes from outside (contents, tool texts) never becomes a special token, nor a part of one:
rendering keeps the origin of each character. In the rendered text a noncharacter is put inside
each special token that the template has not written alone, and it is dropped after special tokens
have been matched. The template itself sees everything as it is, so that content without such texts
gives exactly the tokens of Hugging Face's apply_chat_template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from samovar.checkpoint.base import Checkpoint
from samovar.errors import CheckpointError, RequestError, SettingError, TemplateError
from samovar.text.sandbox import CompiledTemplate
from samovar.text.special import SpecialSplitter
from samovar.text.tokenizer import Tokenizer
from samovar.text.traced import NONCHARACTERS, TracedText, outside_of, traced

Message = Mapping[str, Any]

NAMES = (
    "llama3",
    "zephyr",
    "llama2",
    "chatml",
    "qwen",
    "smollm",
    "gemma",
    "qwen3.5",
    "qwen3.5-nothink",
)
_MAX_TEMPLATE_BYTES = 1 << 20
# Others could complete a token such as <|end|> in a template that writes '<|' + role + '|>'.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "self"})
# The same text under the names that different templates read.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One template for one vocabulary.  Any number of threads may use it.

    name: how it was asked for, "model" for the model's own.
    end_ids: the tokens that end a reply under this template, those of the vocabulary included.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, *, name: str, variables: Mapping[str, object]
    ) -> None:
        if len(source.encode("utf-8", "surrogatepass")) > _MAX_TEMPLATE_BYTES:
            raise TemplateError(
                f"The chat template is larger than {_MAX_TEMPLATE_BYTES} bytes.", param=None
            )
        self.name = name
        self.source = source
        self._tokenizer = tokenizer
        self._compiled = CompiledTemplate(source)
        self._variables = dict(variables)
        self._has_tools = "tool" in source
        self._has_developer = "developer" in source
        self._guarded = SpecialSplitter(_guarded_tokens(tokenizer, source))
        taken = set(source).union(*tokenizer.control_ids, *tokenizer.user_defined_ids)
        self._marks = tuple(mark for mark in NONCHARACTERS if mark not in taken)
        self._has_system = self._renders_system()
        self.end_ids = tokenizer.end_ids | self._closing_tokens()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The templates that `named` knows."""
        return NAMES

    @classmethod
    def from_jinja(cls, source: str, tokenizer: Tokenizer, *, name: str = "model") -> ChatTemplate:
        """The template with this Jinja source.  Raises TemplateError if it is not valid."""
        return cls(source, tokenizer, name=name, variables=_special_tokens(tokenizer))

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The model's own template, if it has one.  Raises CheckpointError if it is not valid."""
        if checkpoint.chat_template is None:
            return None
        try:
            return cls.from_jinja(checkpoint.chat_template, tokenizer)
        except TemplateError as error:
            raise CheckpointError(
                f"{checkpoint.path}: tokenizer.chat_template: {error} "
                f"--chat-template NAME replaces it ({', '.join(NAMES)})."
            ) from None

    @classmethod
    def named(cls, name: str, tokenizer: Tokenizer) -> ChatTemplate:
        """One of the built-in templates.  Raises SettingError for another name."""
        if name not in NAMES:
            raise SettingError(
                f"There is no chat template {name!r}; there are: {', '.join(NAMES)}.",
                param="chat_template",
            )
        file = resources.files("samovar.text") / "templates" / f"{name}.jinja"
        variables = {**_special_tokens(tokenizer), "add_bos_token": tokenizer.add_bos}
        return cls(file.read_text("utf-8"), tokenizer, name=name, variables=variables)

    @classmethod
    def from_file(cls, path: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template in a file.  Raises SettingError, TemplateError."""
        try:
            with open(path, "rb") as file:
                content = file.read(_MAX_TEMPLATE_BYTES + 1)
            source = content.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SettingError(
                f"The chat template {str(path)!r} is neither one of {', '.join(NAMES)} "
                f"nor a file that can be read ({reason}).",
                param="chat_template",
            ) from None
        if len(content) > _MAX_TEMPLATE_BYTES:
            raise SettingError(
                f"The chat template {str(path)!r} is larger than {_MAX_TEMPLATE_BYTES} bytes.",
                param="chat_template",
            )
        return cls.from_jinja(source, tokenizer, name=str(path))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a conversation, as Hugging Face renders it.

        Raises TemplateError, and RequestError for a bad kwarg.
        """
        return self._render(messages, add_generation_prompt, tools, kwargs or {})

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object],
    ) -> TracedText:
        for name in kwargs:
            if name in _RESERVED:
                raise RequestError(
                    f"{name!r} cannot be set here.", param=f"chat_template_kwargs.{name}"
                )
        if not self._has_tools and (tools or any(m.get("tool_calls") for m in messages)):
            raise TemplateError("The chat template cannot render tools or tool calls.")
        variables = {
            **self._variables,
            **kwargs,
            "messages": [_as_templates_expect(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._compiled.render(variables)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        system: str | None = None,
        continue_final: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The prompt tokens of a conversation whose next part the model shall write.

        messages: `role` and `content` (a string) each, and what else the template reads.
        system: used when no message is a system or developer message.
        continue_final: a last message of the assistant is left open, the reply continues it.
        Raises TemplateError where the template refuses, RequestError for a bad kwarg.
        """
        turns: list[Message] = [
            {**traced(turn), "role": turn["role"]} if turn["role"] in _ROLES else traced(turn)
            for turn in self._with_system(messages, system)
        ]
        tools = traced(tools)
        kwargs = traced(kwargs or {})
        last = turns[-1]
        if (
            continue_final
            and last["role"] == "assistant"
            and isinstance(last.get("content"), str)
            and not last.get("tool_calls")
        ):
            text = self._render_open(turns, tools, kwargs)
        else:
            text = self._render(turns, True, tools, kwargs)
        breaks = self._guarded.breaks(text, outside_of(text))
        mark = self._mark_not_in(text) if breaks else ""
        pieces = [text[start:end] for start, end in pairwise((0, *breaks, len(text)))]
        return self._tokenizer.encode(mark.join(pieces), special=True, bos=False, drop=mark)

    def _render_open(
        self,
        turns: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, object],
    ) -> TracedText:
        """The conversation up to the end of its last message's content.

        As Hugging Face's continue_final_message: a tag after the content shows where it ends.
        The space behind the tag tells whether the template trims its contents.
        """
        content = turns[-1]["content"]
        tag = self._mark_not_in(*(str(turn.get("content")) for turn in turns))
        tagged = [*turns[:-1], {**turns[-1], "content": content + tag + " "}]
        text = self._render(tagged, False, tools, kwargs)
        end = text.rfind(tag)
        if end < 0 or content.strip() not in text:
            raise TemplateError(
                "The last message cannot be continued: the chat template leaves parts of it out.",
                param=f"messages[{len(turns) - 1}].content",
            )
        return text[:end] if text.startswith(tag + " ", end) else text[:end].rstrip()

    def _with_system(self, messages: Sequence[Message], system: str | None) -> list[Message]:
        """The messages with the system text in the way that this template can take it."""
        if not messages:
            raise TemplateError("There are no messages.")
        turns: list[Message] = [
            {**m, "role": "system"} if m["role"] == "developer" and not self._has_developer else m
            for m in messages
        ]
        given = any(turn["role"] in ("system", "developer") for turn in turns)
        if system is not None and not given:
            turns.insert(0, {"role": "system", "content": system})
        if self._has_system or turns[0]["role"] != "system":
            return turns
        for i, turn in enumerate(turns):
            if turn["role"] == "user":
                texts = [str(t.get("content") or "") for t in turns[: i + 1]]
                return [{**turn, "content": "\n\n".join(texts)}, *turns[i + 1 :]]
            if turn["role"] != "system":
                break
        raise TemplateError(
            "The chat template has no system role, and there is no user message behind the "
            "system message that could carry its text."
        )

    def _mark_not_in(self, *texts: str) -> str:
        """A noncharacter that is neither in the texts, nor in the template or the vocabulary."""
        for mark in self._marks:
            if not any(mark in text for text in texts):
                return mark
        raise TemplateError("The messages hold all of Unicode's noncharacters.")

    def _renders_system(self) -> bool:
        """Whether a system message is rendered, and not refused or passed over."""
        user = {"role": "user", "content": "Question"}
        system = {"role": "system", "content": "Instruction"}
        try:
            self.render([user], add_generation_prompt=True)
        except TemplateError:
            return True  # It wants something else; its own message is the better one.
        try:
            return "Instruction" in self.render([system, user], add_generation_prompt=True)
        except TemplateError:
            return False

    def _closing_tokens(self) -> frozenset[int]:
        """The special token that closes a turn of the assistant, if one does."""
        turns = [
            {"role": "user", "content": "Question"},
            {"role": "assistant", "content": "Answer"},
        ]
        try:
            text = self.render(turns, add_generation_prompt=False)
        except TemplateError:
            return frozenset()
        _, found, rest = text.rpartition("Answer")
        if found:
            for token in self._tokenizer.encode(rest, special=True, bos=False):
                if self._tokenizer.is_control(token):
                    return frozenset({token})
        return frozenset()


def _guarded_tokens(tokenizer: Tokenizer, source: str) -> dict[str, int]:
    """The tokens that text from outside must not become.

    All control tokens, and of the user-defined ones those by which the template builds turns:
    many models had their <|im_start|> added that way.  Others match, as in Hugging Face.
    """
    markup = {
        text: token
        for text, token in tokenizer.user_defined_ids.items()
        if text.startswith("<|") and text.endswith("|>") and text in source
    }
    return {**tokenizer.control_ids, **markup}


def _special_tokens(tokenizer: Tokenizer) -> dict[str, object]:
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.unk_id,
        "pad_token": tokenizer.pad_id,
    }
    return {name: tokenizer.token_text(i) for name, i in ids.items() if i is not None}


def _as_templates_expect(message: Message) -> dict[str, Any]:
    """Without null fields, which templates would print, and reasoning under each of its names."""
    known = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING:
        if name in known:
            return {"thinking": known[name], **known, "reasoning_content": known[name]}
    return known
