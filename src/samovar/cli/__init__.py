"""The program `samovar`: one file for each group of commands.

Replies and tables go to stdout, everything else to stderr. Whatever imports the engine, the
server or numpy does so inside its command, so that help and errors come at once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager

from samovar.errors import SamovarError
from samovar.log import end_line

# What other programs call our commands, and commands that are still to be built.
OTHER_NAMES = {
    "benchmark": "bench",
    "complete": "generate",
    "completion": "generate",
    "download": "pull",
    "get": "pull",
    "list": "models",
    "ls": "models",
    "run": "chat",
    "server": "serve",
    "show": "info",
    "start": "serve",
}
UNBUILT = ("compare", "config", "doctor", "logits", "perplexity", "quantize", "rm", "tokenize")
INTERRUPTED = 130
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command line; the exit code: 0, 1 for an error, 130 after Ctrl-C."""
    _reopen_standard_files()
    with _orderly_end():
        return _main(arguments)


def _reopen_standard_files() -> None:
    """Gives a process that was started without stdin, stdout or stderr empty ones.

    Else the next file or socket that is opened would take their place.
    """
    for number, name, mode in [(0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")]:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Makes the signals that end a process exceptions, so that what was begun is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    # One that is ignored, as under nohup, stays so.
    taken = [n for n in END_SIGNALS if signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _main(arguments: list[str] | None) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        end_line()
        return INTERRUPTED
    except SamovarError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has left (`| head`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("SAMOVAR_TRACEBACK") == "1":
            traceback.print_exc()
            return 1
        if isinstance(error, MemoryError):
            return _fail("there is not enough memory for this")
        return _fail(
            f"unexpected {type(error).__name__}: {error} "
            "(SAMOVAR_TRACEBACK=1 shows where; please report it)"
        )


def _run(arguments: list[str] | None) -> int:
    import typer

    from samovar.cli.app import command

    try:
        result = command().main(arguments, prog_name="samovar", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # typer's own errors about the command line; where their class lives depends on its version.
        if message := getattr(error, "format_message", None):
            return _fail(message() + _hint(error, message()))
        raise
    return result if isinstance(result, int) else 0


def _hint(error: Exception, message: str) -> str:
    """What would do instead, where a usage error does not say so itself."""
    if found := re.fullmatch(r"No such command '(\S+)'\.", message):
        name = found[1]
        if name in UNBUILT:
            return " It is not built in this version."
        return f" Did you mean '{OTHER_NAMES[name]}'?" if name in OTHER_NAMES else ""
    # How the command takes what was given to it as a bare word.
    context = getattr(error, "ctx", None)
    if context is None or "unexpected extra argument" not in str(error):
        return ""
    parameters = context.command.params
    if any(parameter.param_type_name == "argument" for parameter in parameters):
        return ""
    flags = {flag for parameter in parameters for flag in parameter.opts}
    ways = [way for way in ("-m MODEL", "--prompt TEXT") if way.split()[0] in flags]
    return f"; use {' or '.join(ways)}" if ways else ""


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"samovar: {line}", file=sys.stderr)
    return 1
