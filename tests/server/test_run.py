"""The process: what it prints, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from samovar.errors import SettingError
from samovar.server.run import bind

from .conftest import PATIENCE_S, TINY

LONG_PROMPTS = [[i] for i in range(3, 35)]  # most go on until the context is full


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    """`samovar serve` with the tiny model: the process, its start-up lines, its URL."""
    command = [sys.executable, "-m", "samovar", "serve", str(TINY), "--port", "0", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SAMOVAR_")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "curl" in line:
                break
        try:
            url = next(m[0] for line in lines if (m := re.search(r"http://\S+:\d+(?=/v1)", line)))
            yield process, lines, url
        finally:
            process.kill()


def test_start_up_lines_and_a_clean_end() -> None:
    with serving("--host", "0.0.0.0", "-t", "1", "--ctx", "256") as (process, lines, url):
        text = "\n".join(lines)
        assert re.search(r"^samovar \d+\.\d+\.\d+, \w+", text)
        for found in ("llama", "256 of 2048", "template", "threads   1", "bf16", "MB planned"):
            assert found in text
        assert url.startswith("http://0.0.0.0:")
        assert "warning" in text
        port = url.rpartition(":")[2]
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in lines[-1]
        body = {"prompt": "Hello", "max_tokens": 2}
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        assert reply.status_code == 200
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "POST /v1/completions 200" in log
        assert "Traceback" not in log


def test_a_running_reply_finishes() -> None:
    with serving("-t", "1") as (process, _, url):
        body = {"prompt": [3], "max_tokens": 500, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
            lines = reply.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert rest.endswith("data: [DONE]\n")
        assert '"finish_reason":"length"' in rest
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_while_a_reply_finishes_health_says_so_and_all_else_is_refused() -> None:
    with serving("-t", "1") as (process, _, url):
        body = {"prompt": LONG_PROMPTS, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
            lines = reply.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert "shutting down" in process.stderr.readline()
            health = httpx.get(f"{url}/health", timeout=PATIENCE_S)
            assert (health.status_code, health.json()["status"]) == (503, "draining")
            models = httpx.get(f"{url}/v1/models", timeout=PATIENCE_S)
            assert models.json()["error"]["code"] == "shutting_down"
            for refused in (health, models):
                assert refused.status_code == 503
                assert refused.headers["connection"] == "close"
                assert refused.headers["retry-after"]
            assert next(line for line in lines if line.startswith("data: "))  # it goes on
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_S)


def test_a_reply_that_is_cut_off_says_so() -> None:
    options = ("-t", "1", "--drain-timeout", "0", "--log-format", "json")
    with serving(*options) as (process, _, url):
        body = {"prompt": LONG_PROMPTS, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
            lines = reply.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            process.send_signal(signal.SIGINT)
            rest = []
            with pytest.raises(httpx.RemoteProtocolError):
                rest.extend(lines)
        assert "shutting_down" in "\n".join(rest)
        assert "data: [DONE]" not in rest
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_a_second_signal_ends_at_once() -> None:
    with serving("-t", "1") as (process, _, url):
        body = {"prompt": LONG_PROMPTS, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
            lines = reply.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert "shutting down" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_S)
        assert process.returncode == 128 + signal.SIGTERM


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match="Cannot listen"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_hosts() -> None:
    sockets = bind("localhost", 0)
    ports = {sock.getsockname()[1] for sock in sockets}
    for sock in sockets:
        sock.close()
    assert len(ports) == 1
    with pytest.raises(SettingError, match="neither an IP address nor localhost"):
        bind("example.org", 0)
