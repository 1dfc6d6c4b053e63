"""A program that is told to end while it downloads: no process and no file of it stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

PATIENCE_S = 60


@pytest.fixture
def silent_index() -> Iterator[socket.socket]:
    """A package index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)
        yield listening


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        (["serve", "--port", "0"], signal.SIGTERM, 0),
        (["serve", "--port", "0"], signal.SIGINT, 130),
        (["serve", "--port", "0", "--no-preload", "--drain-timeout", "0"], signal.SIGTERM, 0),
        (["pull", "smollm2"], signal.SIGTERM, 128 + signal.SIGTERM),
        (["pull", "smollm2"], signal.SIGHUP, 128 + signal.SIGHUP),
        (["pull", "smollm2"], signal.SIGINT, 130),
    ],
)
def test_a_signal_while_downloading_leaves_nothing(
    silent_index: socket.socket,
    tmp_path: Path,
    command: list[str],
    number: signal.Signals,
    code: int,
) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SAMOVAR_", "PIP_", "UV_"))}
    environment = {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple",
        "SAMOVAR_CACHE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "samovar", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        asking = threading.Thread()
        if "--no-preload" in command:
            assert program.stdout is not None
            line = next(line for line in program.stdout if line.startswith("listening on "))
            asking = threading.Thread(target=ask, args=(line.split()[2],))
            asking.start()
        try:
            pip, _ = silent_index.accept()
            with pip:
                pip.settimeout(PATIENCE_S)
                assert pip.recv(1)
                assert any(path.is_dir() for path in (tmp_path / "models").iterdir())
                program.send_signal(number)
                _, errors = program.communicate(timeout=PATIENCE_S)
                while pip.recv(4096):
                    pass  # until the process at the other end is gone
        finally:
            program.kill()
        if asking.ident:
            asking.join(PATIENCE_S)
    assert program.returncode == code
    if command[0] == "serve" and number == signal.SIGINT:
        assert errors.endswith("\nsamovar: interrupted\n")
    assert "Traceback" not in errors
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def ask(url: str) -> None:
    response = httpx.post(f"{url}/completions", json={"prompt": "a"}, timeout=PATIENCE_S)
    assert json.loads(response.content)["error"]["code"] == "shutting_down"
