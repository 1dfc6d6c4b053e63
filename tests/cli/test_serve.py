"""`samovar serve` as a program: the command line and the server give the same reply."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

MODEL = str(Path(__file__).parent.parent / "golden/llama.gguf")
SETTINGS = [
    "-T", "1.3", "-p", "0.95", "--top-k", "50", "--min-p", "0.01", "--repeat-penalty", "1.2",
    "--repeat-last-n", "20", "-s", "5", "-n", "24", "-t", "1",
]  # fmt: skip
SYSTEM = ["--system", "Be brief."]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SAMOVAR_")}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path), "SAMOVAR_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def base_url(environment: dict[str, str]) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "samovar", "serve", MODEL, "--port", "0", *SETTINGS, *SYSTEM],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert server.stdout is not None
    try:
        with server.stdout:
            for line in server.stdout:
                if found := re.search(r"listening on (http://\S+)", line):
                    break
            else:
                pytest.fail("the server did not start")
            yield found[1]
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_server_and_command_line_give_the_same_reply(
    base_url: str, environment: dict[str, str]
) -> None:
    def printed(command: str, *options: str) -> str:
        arguments = [command, "-m", MODEL, "--prompt", "Once upon a time", *SETTINGS, *options]
        result = subprocess.run(
            [sys.executable, "-m", "samovar", *arguments],
            stdout=subprocess.PIPE,
            env=environment,
            check=True,
            timeout=60,
        )
        return result.stdout.decode()

    chat = httpx.post(
        f"{base_url}/chat/completions",
        json={"messages": [{"role": "user", "content": "Once upon a time"}]},
    ).json()
    text = httpx.post(f"{base_url}/completions", json={"prompt": "Once upon a time"}).json()
    assert printed("chat", *SYSTEM) == chat["choices"][0]["message"]["content"] + "\n"
    assert printed("generate") == text["choices"][0]["text"] + "\n"
