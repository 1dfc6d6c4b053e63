"""Log lines on stderr: text for people, or one JSON object a line.

`set_up` is called once by the program that owns the process; the library only writes to the
logger called "samovar", so that a program that embeds it decides where the lines go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LOGGER = logging.getLogger("samovar")
MOST_UNWRITTEN = 10_000  # lines that wait for a slow reader of stderr
CLOSE_S = 1.0
STDERR = 2
SHOW_CURSOR = b"\x1b[?25h"
MAX_TOLD_CHARS = 300  # of an error's message and of its param: they may quote a request


@dataclass(frozen=True, slots=True)
class RequestLog:
    """What is known about one request when it ends; None is what does not apply to it.

    client: address of the other end.  status: HTTP status, 499 when the client went away.
    ttft_s: from the arrival of the request to its first token.
    tokens_per_s: reply tokens a second after the first.  duration_s: from arrival to the last byte.
    request_id: what the reply's `x-request-id` says.
    error_code, error_param, error_message: why it was refused or failed, as the client was told.
    """

    client: str
    method: str
    path: str
    status: int
    duration_s: float
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    seed: int | None = None
    finish_reason: str | None = None
    ignored_fields: tuple[str, ...] = ()
    request_id: str | None = None
    error_code: str | None = None
    error_param: str | None = None
    error_message: str | None = None


def set_up(log_format: Literal["text", "json"] | str) -> None:
    """Send all log lines of the process, those of uvicorn included, to stderr in one format."""
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [_Unhurried(writer)]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.INFO)


class _Unhurried(logging.Handler):
    """Hands records to a thread that writes them: whoever reads stderr must not hold up a server.

    Of a reader that has stopped, the newest records are dropped and counted.
    """

    def __init__(self, writer: logging.Handler) -> None:
        super().__init__()
        self._writer = writer
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_UNWRITTEN)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write, name="samovar-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._num_dropped and not self._records.full():
            text = f"{self._num_dropped} log lines were dropped: nobody read them"
            self._num_dropped = 0
            self._records.put_nowait(logging.makeLogRecord({"msg": text, "levelname": "WARNING"}))
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._num_dropped += 1

    def close(self) -> None:
        """Writes what is left, for at most a moment."""
        with contextlib.suppress(queue.Full):
            self._records.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        super().close()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._writer.handle(record)


def log_request(record: RequestLog) -> None:
    """Write the one line of a finished request."""
    LOGGER.info("request", extra={"samovar_request": record})


def escape(text: str) -> str:
    """`text` with everything that is not printable escaped, so that it cannot forge a line.

    Covers control characters, line and paragraph separators, bidirectional overrides and lone
    surrogates; a backslash is doubled, so that an escape cannot be imitated.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        "\\\\" if c == "\\" else c if c.isprintable() else _escape_one(ord(c)) for c in text
    )


def _escape_one(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def end_line() -> None:
    """Ends the line of a terminal that shows ^C, so that what comes next has one of its own.

    As `last_words` it may be called in a signal handler, which waits for no lock.
    """
    with contextlib.suppress(OSError):
        if os.isatty(STDERR):
            os.write(STDERR, b"\n")


def last_words(text: str, log_format: str) -> None:
    """Writes a line to stderr at once, for a process that ends before anything else is written."""
    line = json_line(text) if log_format == "json" else f"samovar: {text}"
    with contextlib.suppress(OSError):
        # A bar of progress hides the cursor and has no time to show it again.
        shown = SHOW_CURSOR if os.isatty(STDERR) else b""
        os.write(STDERR, shown + line.encode() + b"\n")


def json_line(
    message: str,
    facts: Mapping[str, object] | None = None,
    *,
    level: str = "info",
    at: float | None = None,
) -> str:
    """One line of the JSON form.  at: seconds since 1970, otherwise now.

    JSON in ASCII: every character of a user that could end a line is escaped by JSON itself.
    """
    at = time.time() if at is None else at
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    head = {"time": f"{stamp}.{int(at % 1 * 1000):03d}Z", "level": level, "message": message}
    return json.dumps({**head, **(facts or {})})


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request: RequestLog | None = getattr(record, "samovar_request", None)
        if request is None:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            text = f"{level}{escape(record.getMessage())}"
        else:
            text = _request_text(request)
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))} {text}"
        if record.exc_info and record.exc_info[0] is not None:
            # A traceback is ours, but the message at its end may quote a user: indented lines
            # cannot be mistaken for lines of their own.
            trace = self.formatException(record.exc_info)
            line += "".join("\n    " + escape(part) for part in trace.splitlines())
        return line


def _request_text(r: RequestLog) -> str:
    parts = [_word(r.client), _word(r.method), _word(r.path), str(r.status)]
    if r.prompt_tokens is not None:
        cached = f" ({r.cached_tokens} cached)" if r.cached_tokens else ""
        parts.append(f"prompt {r.prompt_tokens}{cached}")
    if r.reply_tokens is not None:
        parts.append(f"reply {r.reply_tokens}")
    if r.queue_s is not None:
        parts.append(f"queue {_seconds(r.queue_s)}")
    if r.ttft_s is not None:
        parts.append(f"first {_seconds(r.ttft_s)}")
    if r.tokens_per_s is not None:
        parts.append(f"{r.tokens_per_s:.1f} tok/s")
    parts.append(f"total {_seconds(r.duration_s)}")
    if r.finish_reason is not None:
        parts.append(escape(r.finish_reason))
    if r.seed is not None:
        parts.append(f"seed {r.seed}")
    if r.ignored_fields:
        names = (_word(name).replace(",", "\\x2c") for name in r.ignored_fields)
        parts.append("ignored " + ",".join(names))
    if r.request_id is not None:
        parts.append(f"id {_word(r.request_id)}")
    if r.error_code is not None:
        parts.append(f"code {_word(r.error_code)}")
    if r.error_param is not None:
        parts.append(f"param {_word(_cut(r.error_param))}")
    if r.error_message is not None:  # at the end: it has words of its own
        parts.append(f"error {escape(_cut(r.error_message))}")
    return " ".join(parts)


def _word(text: str) -> str:
    """What comes from a client, as one word: it cannot look like another part of the line."""
    return escape(text).replace(" ", "\\x20")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TOLD_CHARS else text[:MAX_TOLD_CHARS] + "..."


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f}ms" if value < 10 else f"{value:.1f}s"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = {}
        request: RequestLog | None = getattr(record, "samovar_request", None)
        if request is not None:
            for field in dataclasses.fields(request):
                value = getattr(request, field.name)
                if value is None or value == ():
                    continue
                if isinstance(value, float):
                    value = round(value, 6)
                elif field.name in ("error_param", "error_message"):
                    value = _cut(value)
                facts[field.name] = value
        if record.exc_info and record.exc_info[0] is not None:
            facts["traceback"] = self.formatException(record.exc_info)
        message = record.getMessage() if request is None else "request"
        level = record.levelname.lower()
        return json_line(message, facts, level=level, at=record.created)
