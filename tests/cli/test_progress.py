"""What is shown of long work: a bar on a terminal of 80 columns, a line elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys
import termios

import pytest

from samovar.cli.progress import progress_bar, progress_log

COLUMNS = 80


Calls = list[tuple[str, int, int | None]]


def drawn(monkeypatch: pytest.MonkeyPatch, *contexts: Calls) -> list[str]:
    """The lines that a terminal is sent for the calls in each context, without colours."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, COLUMNS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        for calls in contexts:
            with progress_bar() as progress:
                for call in calls:
                    progress(*call)
    sent = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and all has been read
        while part := os.read(master, 1 << 16):
            sent += part
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent.decode())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_a_bar_tells_size_and_share_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    long_name = "loading a-model-with-quite-a-long-name.Q4_K_M.gguf"
    lines = drawn(
        monkeypatch,
        [("fetching gemma3:270m", 126_556_512, 253_113_024)],
        [(long_name, 10**9, 4 * 10**9)],
    )
    assert any("50%" in line and "126.6/253.1 MB" in line for line in lines)
    assert any("loading a-model" in line and "25%" in line for line in lines)
    assert all(len(line) <= COLUMNS for line in lines)


def test_only_the_bar_of_what_is_under_way_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 98_362_432
    calls: Calls = [(f"{what} smollm2", size, size) for what in ("fetching", "unpacking")]
    assert "unpacking" in drawn(monkeypatch, calls)[-1]
    calls.append(("fetching smollm2", size // 2, size))
    assert "fetching smollm2" in drawn(monkeypatch, calls)[-1]


def test_without_a_terminal_what_begins_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        for done in (0, 0, 50_000_000, 98_362_432):
            progress("fetching smollm2", done, 98_362_432)
        progress("unpacking smollm2", 1 << 20, 98_362_432)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "fetching smollm2 (98 MB)\n")


def test_where_lines_are_logged_what_begins_is_one(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "samovar"), progress_log() as progress:
        for done in (0, 0, 98_362_432):
            progress("fetching smollm2", done, 98_362_432)
    assert caplog.messages == ["fetching smollm2 (98 MB)"]
    assert capsys.readouterr() == ("", "")
