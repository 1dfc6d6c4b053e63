"""`samovar chat` and `samovar generate`: replies in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samovar.cli.options import takes_settings
from samovar.cli.reply import Reply, checked_text, load_engine, read_prompt, stream
from samovar.config import Settings
from samovar.errors import (
    ContextOverflow,
    RequestError,
    SamovarError,
    SettingError,
    TemplateError,
)

if TYPE_CHECKING:
    from samovar.engine.engine import Engine

_INTERRUPTED = 130
_HELP = (
    "/clear forgets the conversation, /exit or Ctrl-D ends it, /help shows this, "
    "//text sends /text, Ctrl-C stops a reply."
)


@takes_settings("model", "sampling", "machine")
def chat(
    settings: Settings,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Answer this and end; -: read it from standard input."),
    ] = None,
) -> int:
    """Talk to a model: one turn with --prompt, otherwise a conversation."""
    message = None if prompt is None else read_prompt(prompt)
    model, engine = load_engine(settings)
    if message is None:
        return _converse(engine, settings, model.id)
    try:
        reply = _answer(engine, settings, [{"role": "user", "content": message}])
    except ContextOverflow as error:
        raise _with_hint(error, _longer(engine)) from error
    return _INTERRUPTED if reply.interrupted else 0


@takes_settings("model", "sampling", "machine", without=("chat_template", "system"))
def generate(
    settings: Settings,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text to continue; -: read it from standard input."),
    ] = None,
) -> int:
    """Continue a text as it stands, without any chat template."""
    if prompt is None:
        raise SettingError("generate needs --prompt TEXT, or --prompt - for standard input.")
    text = read_prompt(prompt)
    _, engine = load_engine(settings)
    tokens = engine.tokenizer.encode(text, special=True)
    if not tokens and engine.tokenizer.bos_id is not None:
        tokens = [engine.tokenizer.bos_id]  # an empty text starts from the beginning
    reply = stream(engine, settings, tokens, param="prompt")
    return _INTERRUPTED if reply.interrupted else 0


def _answer(engine: Engine, settings: Settings, messages: Sequence[dict[str, Any]]) -> Reply:
    if engine.template is None:
        raise TemplateError(
            "This model has no chat template: choose one with --chat-template, or use "
            "`samovar generate`."
        )
    tokens = engine.template.encode(messages, system=settings.system)
    return stream(engine, settings, tokens, param="messages")


def _longer(engine: Engine) -> str:
    """How to have a longer context, if the model allows it."""
    if engine.info.num_ctx == engine.info.max_ctx:
        return ""
    return f"--ctx N allows up to {engine.info.max_ctx} tokens"


def _with_hint(error: ContextOverflow, *hints: str) -> RequestError:
    said = ", ".join(hint for hint in hints if hint)
    return RequestError(f"{error} ({said}.)" if said else str(error), param=error.param)


def _converse(engine: Engine, settings: Settings, name: str) -> int:
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401  (gives input() its line editing)

        print(f"{name}. {_HELP}", file=sys.stderr)
    messages: list[dict[str, Any]] = []
    while True:
        try:
            line = _read_line(interactive)
            line = None if line is None else checked_text(line, "The line")
            if line is None or line in ("/exit", "/quit"):
                return 0
            if line == "/clear":
                messages.clear()
            elif line == "/help":
                print(_HELP, file=sys.stderr)
            elif line.startswith("/") and not line.startswith("//"):
                raise SettingError(f"{line.split()[0]}: unknown command; /help lists them.")
            elif line:
                text = line.removeprefix("/")  # of //text
                reply = _turn(engine, settings, messages, text)
                if reply.interrupted and not interactive:
                    return _INTERRUPTED
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\n(/exit or Ctrl-D ends the conversation.)", file=sys.stderr)
        except SamovarError as error:
            # The conversation goes on without the turn that failed.
            if not interactive:
                raise
            print(f"samovar: {error}", file=sys.stderr)


def _turn(engine: Engine, settings: Settings, messages: list[dict[str, Any]], line: str) -> Reply:
    """Answers `line`; both are added to `messages` if anything was said."""
    user = {"role": "user", "content": line}
    try:
        reply = _answer(engine, settings, [*messages, user])
    except ContextOverflow as error:
        forget = "/clear forgets the conversation so far" if messages else ""
        raise _with_hint(error, forget, _longer(engine)) from error
    if reply.text:
        messages += [user, {"role": "assistant", "content": reply.text}]
    return reply


def _read_line(interactive: bool) -> str | None:
    """The next line without surrounding white space, or None at the end of the input."""
    try:
        if not interactive:
            line = sys.stdin.readline()
            return line.strip() if line else None
        # input() writes its prompt to stdout, where only replies belong, unless that is the
        # terminal.
        if sys.stdout.isatty():
            return input("> ").strip()
        print("> ", end="", file=sys.stderr, flush=True)
        return input().strip()
    except EOFError:
        print(file=sys.stderr)
        return None
    except UnicodeDecodeError as error:
        raise SettingError(f"The line is not UTF-8 text: {error}.") from None
