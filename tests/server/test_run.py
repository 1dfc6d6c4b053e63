"""The process: what it prints, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from samovar.errors import SettingError
from samovar.server.run import bind

from .conftest import PATIENCE_S, TINY

LONG_PROMPTS = [[i] for i in range(3, 35)]  # most go on until the context is full


@contextmanager
def serving(
    *options: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    """`samovar serve` with the tiny model: the process, its start-up lines, its URL."""
    command = [sys.executable, "-m", "samovar", "serve", str(TINY), "--port", "0", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SAMOVAR_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | variables,
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


def test_the_banner_names_what_is_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-one\nsecret-two\n")
    cache = ["--cache-dir", str(tmp_path / "kv"), "--cache-disk-gb", "2.5"]
    options = ["-t", "1", "--api-key-file", str(keys), "--speculate", "off", *cache]
    with serving(*options) as (_, lines, _):
        text = "\n".join(lines)
    assert f"{tmp_path / 'kv'}, up to 2.5 GiB" in text
    assert "API keys  2" in text
    assert "speculate off" in text
    assert "-H 'Authorization: Bearer KEY'" in lines[-1]
    assert "secret" not in text
    assert "$" not in text
    with serving("-t", "1") as (_, lines, _):
        text = "\n".join(lines)
    for absent in ("keys", "speculate", "GiB", "Authorization"):
        assert absent not in text


@pytest.mark.parametrize("lazy", [False, True])
def test_with_json_every_line_is_an_object(lazy: bool, tmp_path: Path) -> None:
    options = ("-t", "1", "--host", "0.0.0.0", "--log-format", "json")
    unknown = {"SAMOVAR_NONSENSE": "1"}
    with serving(*options, *["--no-preload"] * lazy, **unknown) as (process, lines, url):
        (line,) = lines
        facts = json.loads(line)
        assert (facts["level"], facts["message"]) == ("info", "listening")
        assert (facts["model"], facts["url"]) == ("llama", f"{url}/v1")
        assert "everyone" in facts["warning"]
        assert ("threads" in facts) == (not lazy)
        port = url.rpartition(":")[2]
        httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": 1})
        body = {"prompt": "a", "max_tokens": 1}
        httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=PATIENCE_S)
    assert out == ""
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert messages.count("request") == 2
    assert "SAMOVAR_NONSENSE is no known variable." in messages


def test_with_json_what_keeps_the_server_from_starting_is_an_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samovar", "serve", "--log-format", "json"]
    command += ["-m", str(tmp_path / "missing.gguf"), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    line = json.loads(ended.stderr)
    assert line["level"] == "critical"
    assert "missing.gguf" in line["message"]


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


@contextmanager
def long_reply(url: str) -> Iterator[Iterator[str]]:
    """The lines of a stream that lasts, after its first event."""
    body = {"prompt": LONG_PROMPTS, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        yield lines


def test_while_a_reply_finishes_health_says_so_and_all_else_is_refused() -> None:
    with serving("-t", "1") as (process, _, url), long_reply(url) as lines:
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
        with long_reply(url) as lines:
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
        with long_reply(url):
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
