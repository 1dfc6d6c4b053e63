"""One reply of the model, streamed to the terminal; Ctrl-C stops it between two steps."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samovar.config import Settings
from samovar.errors import SettingError

if TYPE_CHECKING:
    from samovar.engine.engine import Engine
    from samovar.hub import LocalModel

# Text of a model must not command the terminal: all control characters but tab and newline.
_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (9, 10)}

MAX_INPUT_BYTES = 8 << 20  # as much as the body of a request may hold


@dataclass(frozen=True, slots=True)
class Reply:
    """What was said, and whether Ctrl-C ended it."""

    text: str
    interrupted: bool


def load_engine(settings: Settings) -> tuple[LocalModel, Engine]:
    """The model of `settings`, which is downloaded when it is not there, and its engine."""
    from samovar.cli.progress import progress_bar
    from samovar.engine.engine import Engine

    model = find_model(settings)
    with progress_bar() as progress:
        engine = Engine.load(
            model.path, settings.engine_options(), sha256=model.sha256, progress=progress
        )
    return model, engine


def find_model(settings: Settings) -> LocalModel:
    """The files of the model of `settings`, downloaded when they are not there."""
    from samovar import hub
    from samovar.cli.progress import progress_bar

    with progress_bar() as progress:
        return hub.resolve(settings.model, offline=settings.offline, progress=progress)


def read_prompt(prompt: str) -> str:
    """The text of `--prompt`: itself, or for `-` standard input without its last newline."""
    if prompt == "-":
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if len(data) > MAX_INPUT_BYTES:
            raise SettingError(f"Standard input holds more than {MAX_INPUT_BYTES >> 20} MiB.")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise SettingError(f"Standard input is not UTF-8 text: {error}.") from None
        return text.removesuffix("\n")
    return checked_text(prompt, "--prompt")


def checked_text(text: str, label: str) -> str:
    """`text`, which must hold none of the stand-ins for bytes that Python could not decode."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise SettingError(f"{label} holds bytes that are not UTF-8 text.")
    return text


def stream(engine: Engine, settings: Settings, prompt: Sequence[int], *, param: str) -> Reply:
    """Generates one reply and writes it to stdout as it comes, with a newline at its end.

    param: what the prompt is called in an error. Raises RequestError before anything is written.
    """
    from samovar.engine.request import Request

    request = Request(
        id="reply",
        prompt=tuple(prompt),
        sampling=settings.sampling(),
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        end_ids=engine.end_ids,
    )
    engine.check(request, param=param)
    pieces: list[str] = []
    with _interrupts() as interrupted:
        try:
            engine.submit(request)
            ended = False
            while not ended and not interrupted():
                for _, delta in engine.step() or ():
                    pieces.append(delta.text)
                    write(delta.text)
                    if delta.error is not None:
                        write("\n")
                        raise RuntimeError(delta.error)
                    ended = delta.finish_reason is not None
        finally:
            engine.abort(request.id)
        write("\n")
        return Reply("".join(pieces), not ended)


def write(text: str) -> None:
    """Writes text of a model to stdout; nothing in it can command a terminal."""
    if text:
        sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
        sys.stdout.flush()


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed; none is raised meanwhile.

    KeyboardInterrupt could come in the middle of a step and leave the engine's state torn.
    """
    pressed = False

    def note(signum: int, frame: types.FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
