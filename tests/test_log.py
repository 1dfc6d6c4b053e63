"""Log lines: complete, and never forged by what a client sends."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.log import LOGGER, RequestLog, escape, log_request, set_up

RECORD = RequestLog(
    client="127.0.0.1:5000",
    method="POST",
    path="/v1/chat/completions",
    status=200,
    duration_s=1.5,
    prompt_tokens=30,
    reply_tokens=12,
    cached_tokens=16,
    queue_s=0.001,
    ttft_s=0.25,
    tokens_per_s=61.2345,
    seed=7,
    finish_reason="stop",
    ignored_fields=("foo", "a b,c\n"),
)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, LOGGER.level
    yield
    root.handlers[:], level, own = before
    root.setLevel(level)
    LOGGER.setLevel(own)


def written(capsys: pytest.CaptureFixture[str]) -> str:
    """Everything logged so far, once the thread that writes it is done."""
    for handler in logging.getLogger().handlers:
        handler.close()
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_reader_that_has_stopped_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    text = b""
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        set_up("text")
        for _ in range(20_000):  # far more than the pipe and the queue hold
            LOGGER.info("a line")
        while b"log lines were dropped" not in text:
            text += reader.read1()
            LOGGER.info("a later line")
        rest = threading.Thread(target=reader.read)
        rest.start()
        for handler in logging.getLogger().handlers:
            handler.close()
        pipe.close()
        rest.join()
    assert text.count(b"a line") < 20_000


def test_a_request_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("text")
    log_request(RECORD)
    err = written(capsys)
    assert err.count("\n") == 1
    assert err[20:].rstrip("\n") == (
        "127.0.0.1:5000 POST /v1/chat/completions 200 prompt 30 (16 cached) reply 12 queue 1ms "
        r"first 250ms 61.2 tok/s total 1500ms stop seed 7 ignored foo,a\x20b\x2cc\x0a"
    )


def test_a_request_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json")
    log_request(RECORD)
    err = written(capsys)
    line = json.loads(err)
    assert err.count("\n") == 1
    assert line["message"] == "request"
    assert (line["status"], line["prompt_tokens"], line["seed"]) == (200, 30, 7)
    assert line["ignored_fields"] == ["foo", "a b,c\n"]


REFUSED = RequestLog(
    client="127.0.0.1:5000",
    method="POST",
    path="/v1/chat/completions",
    status=400,
    duration_s=0.001,
    request_id="my id",
    error_code="unsupported_value",
    error_param="a b\n",
    error_message="no 'x\n2026-01-01 00:00:00 forged' " + "y" * 100_000,
)


def test_a_refusal_says_why_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("text")
    log_request(REFUSED)
    err = written(capsys)
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert err[20:].startswith(
        "127.0.0.1:5000 POST /v1/chat/completions 400 total 1ms id my\\x20id "
        "code unsupported_value param a\\x20b\\x0a error no 'x\\x0a2026-01-01 00:00:00 forged' yyy"
    )


def test_a_path_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("text")
    log_request(replace(REFUSED, path="/v1/models 200 total 1ms id forged"))
    assert written(capsys)[20:].startswith(
        "127.0.0.1:5000 POST /v1/models\\x20200\\x20total\\x201ms\\x20id\\x20forged 400 "
    )


def test_a_refusal_says_why_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json")
    log_request(REFUSED)
    err = written(capsys)
    line = json.loads(err)
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert (line["request_id"], line["error_code"]) == ("my id", "unsupported_value")
    assert line["error_param"] == "a b\n"
    assert line["error_message"].startswith("no 'x\n2026-01-01 00:00:00 forged' yyy")


def test_what_does_not_apply_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json")
    log_request(RequestLog(client="c", method="GET", path="/", status=404, duration_s=0.001))
    assert set(json.loads(written(capsys))) == {
        "time", "level", "message", "client", "method", "path", "status", "duration_s",
    }  # fmt: skip


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_stays_part_of_its_line(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(log_format)
    try:
        raise ValueError("x\n2026-01-01 00:00:00 forged")
    except ValueError:
        LOGGER.exception("failed")
    lines = written(capsys).splitlines()
    assert sum(not line.startswith("    ") for line in lines) == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_fault_of_another_thread_is_told_whole(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    faults: list[BaseException] = []

    def run() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise MemoryError("second") from error
        except MemoryError as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    set_up(log_format)
    LOGGER.critical("the engine has stopped", exc_info=faults[0])
    err = written(capsys)
    first, *rest = err.splitlines()
    if log_format == "json":
        line = json.loads(first)
        assert rest == []
        assert (line["level"], line["message"]) == ("critical", "the engine has stopped")
        err = line["traceback"]
    else:
        assert first.endswith("critical: the engine has stopped")
    assert "KeyError: 'first'" in err
    assert "MemoryError: second" in err


@given(st.text(st.characters(codec=None)))
def test_escaped_text_is_printable(text: str) -> None:
    assert escape(text).isprintable()


@given(st.text(), st.text())
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
