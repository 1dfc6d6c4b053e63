"""Replies in the terminal, of a tiny real model: one turn, a conversation, Ctrl-C, a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.cli import main
from samovar.cli.reply import stream
from samovar.config import Settings
from samovar.engine.engine import Engine
from samovar.engine.load import EngineOptions
from samovar.hub import LocalModel

from .conftest import TINY_MODEL

pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(TINY_MODEL, EngineOptions(threads=1))


def output(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_same_command_gives_the_same_reply(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompt", "Once upon", "-n", "12", "-T", "1.5", "-p", "1"]
    seven = output(capfd, command, *options, "--seed", "7")
    assert seven.endswith("\n")
    assert output(capfd, command, *options, "--seed", "7", "--batch", "3") == seven
    assert output(capfd, command, *options, "--seed", "8") != seven


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_prompt_from_standard_input_is_that_of_the_command_line(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = output(capfd, command, "--prompt", "Grüße", "-n", "8")
    give_stdin(monkeypatch, "Grüße\n".encode())
    assert output(capfd, command, "--prompt", "-", "-n", "8") == given


def test_a_line_of_a_conversation_that_is_not_text(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = io.TextIOWrapper(io.BytesIO(b"hi\xff\xfe\n"), "utf-8", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", line)
    assert main(["chat", "-n", "2"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", "samovar: The line holds bytes that are not UTF-8 text.\n")


def test_more_than_a_request_may_hold_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"a" * (8 << 20) + b"a")
    assert main(["generate", "--prompt", "-"]) == 1
    assert "more than 8 MiB" in capfd.readouterr().err


def test_a_prompt_that_is_not_text(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"\xff\xfe")
    assert main(["generate", "--prompt", "-"]) == 1
    assert main(["generate", "--prompt", "\udcff"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("not UTF-8") == err.count("\n") == 2


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_prompt_longer_than_the_context_is_one_line(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--prompt", "word " * 2000]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "maximum context length" in err
    assert ("messages" if command == "chat" else "prompt") in err


def test_a_conversation_through_a_pipe(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = output(capfd, "chat", "--prompt", "One", "-n", "5")
    give_stdin(monkeypatch, b"One\n\nTwo\n")
    both = output(capfd, "chat", "-n", "5")
    assert both.startswith(first)
    assert len(both) > len(first)
    give_stdin(monkeypatch, b"One\n/clear\nOne\n/exit\nOne\n")
    assert output(capfd, "chat", "-n", "5") == first * 2


def test_an_unknown_command_is_not_said_to_the_model(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = output(capfd, "chat", "--prompt", "/clera", "-n", "5")
    give_stdin(monkeypatch, b"//clera\n")
    assert output(capfd, "chat", "-n", "5") == given
    give_stdin(monkeypatch, b"/clera\n")
    assert main(["chat", "-n", "5"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", "samovar: /clera: unknown command; /help lists them.\n")


def test_what_no_longer_fits_names_the_ways_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "word " * 20
    assert main(["chat", "--ctx", "64", "--prompt", long * 5]) == 1
    err = capfd.readouterr().err
    assert "--ctx N allows up to " in err
    assert "/clear" not in err
    give_stdin(monkeypatch, f"Hi\n{long * 5}\n".encode())
    assert main(["chat", "--ctx", "64", "-n", "2"]) == 1
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "/clear forgets the conversation so far, --ctx N allows up to " in err


class Interrupting(io.StringIO):
    """A stdout that presses Ctrl-C when something is written to it."""

    def write(self, text: str) -> int:
        if text.strip():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_stops_a_reply_and_leaves_the_engine_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    settings = Settings(temperature=1.0, top_p=1.0, seed=1)
    prompt = engine.tokenizer.encode("Once upon", special=True)
    monkeypatch.setattr(sys, "stdout", Interrupting())
    reply = stream(engine, settings, prompt, param="prompt")
    assert reply.interrupted
    assert signal.getsignal(signal.SIGINT) is handler
    engine.check_blocks()
    assert engine.stats().running == 0

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    whole = stream(engine, settings, prompt, param="prompt")
    assert not whole.interrupted
    assert whole.text.startswith(reply.text)


# Stdin becomes the controlling terminal, so that Ctrl-C arrives as a signal.
IN_ITS_OWN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from samovar.cli import main
sys.exit(main())
"""


class Terminal:
    """A command of samovar in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_ITS_OWN_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """Reads until `text` comes; what came before it."""
        while text not in self.seen:
            try:
                piece = os.read(self._master, 4096)
            except OSError:  # the other end is gone
                piece = b""
            assert piece, f"{text!r} did not come: {self.seen!r}"
            self.seen += piece.decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def comes(self, text: str, seconds: float) -> bool:
        """Whether `text` comes in time; it is not taken from what was seen."""
        deadline = time.monotonic() + seconds
        while text not in self.seen and (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self.seen += os.read(self._master, 4096).decode(errors="replace")
        return text in self.seen

    def rest(self) -> str:
        """What came until the program ended."""
        with contextlib.suppress(OSError):  # the other end is gone
            while piece := os.read(self._master, 4096):
                self.seen += piece.decode(errors="replace")
        return self.seen

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal("chat", "-n", "6")
    yield terminal
    terminal.close()


def test_a_conversation_in_a_terminal(terminal: Terminal) -> None:
    assert "llama. /clear forgets" in terminal.wait_for("> ")
    terminal.send("/clera\r")
    terminal.wait_for("unknown command; /help lists them")
    terminal.wait_for("> ")
    terminal.send("/help\r")
    assert "//text sends /text" in terminal.wait_for("a reply.")
    terminal.wait_for("> ")
    terminal.send("One\r")
    assert "One" in terminal.wait_for("\r\n")
    terminal.wait_for("> ")
    # Ctrl-C at the prompt drops the line. Again, because Python's readline can miss a signal that
    # comes just before it begins to wait.
    told = "/exit or Ctrl-D ends the conversation."
    for _ in range(20):
        terminal.send("half a line\x03\r")
        if terminal.comes(told, 5.0):
            break
    terminal.wait_for(told)
    terminal.wait_for("> ")
    terminal.send("word " * 700 + "\r")
    terminal.wait_for("samovar: ")
    assert "maximum context length" in terminal.wait_for("> ")
    terminal.send("/exit\r")
    assert terminal.process.wait(60) == 0


def test_the_end_of_input_ends_a_conversation(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.send("\x04")
    assert terminal.process.wait(60) == 0


@pytest.mark.parametrize(
    ("command", "sign", "code"),
    [
        (["serve", "--port", "0"], "}'\r\n", 0),
        (["bench", "--repetitions", "1000"], "measuring", 130),
    ],
)
def test_ctrl_c_leaves_the_next_prompt_a_line_of_its_own(
    command: list[str], sign: str, code: int
) -> None:
    terminal = Terminal(*command)
    try:
        terminal.wait_for(sign)
        terminal.send("\x03")
        terminal.wait_for("^C")
        assert terminal.process.wait(60) == code
        assert terminal.rest().endswith("\n")
    finally:
        terminal.close()


def test_info(capfd: pytest.CaptureFixture[str]) -> None:
    out = output(capfd, "info")
    for part in ("llama", "parameters", "context", "chat template", "licence", str(TINY_MODEL)):
        assert part in out


def test_info_fetches_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = output(capfd, "info", "smollm2")
    for part in ("SmolLM2-135M-Instruct", "Apache-2.0", "98 MB", "not here yet", "pull smollm2"):
        assert part in out
    assert not (tmp_path / "models").exists()


LONG_NAME = "a-model:" + "27b-" * 40


@pytest.mark.parametrize("command", [["models"], ["info"]])
def test_tables_hold_names_and_paths_whole(
    command: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = tmp_path / ("deep/" * 40) / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(TINY_MODEL.read_bytes())
    model = LocalModel(path, LONG_NAME, LONG_NAME, None, None)
    monkeypatch.setattr("samovar.hub.list_models", lambda: [model])
    monkeypatch.setattr("samovar.hub.resolve", lambda name, **options: model)
    out = output(capfd, *command)
    assert LONG_NAME in out
    assert str(path) in out
    assert "\u2026" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_no_models_yet(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "samovar pull" in err
