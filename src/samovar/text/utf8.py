"""Bytes of a reply as text: what is not UTF-8 becomes U+FFFD, once for each byte."""

from __future__ import annotations

_REPLACEMENT = "�"


def decode_replacing(data: bytes) -> str:
    """The text of `data`, each byte that belongs to no character replaced."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        text, tail = decode_available(data)
        return text + _REPLACEMENT * len(tail)


def decode_available(data: bytes) -> tuple[str, bytes]:
    """The text that `data` settles, and the bytes of an unfinished character at its end.

    At most three bytes wait, and only while they can still become a character.
    """
    parts: list[str] = []
    while True:
        try:
            parts.append(data.decode())
            return "".join(parts), b""
        except UnicodeDecodeError as error:
            parts.append(data[: error.start].decode())
            if error.reason == "unexpected end of data":
                return "".join(parts), data[error.start :]
            parts.append(_REPLACEMENT * (error.end - error.start))
            data = data[error.end :]
