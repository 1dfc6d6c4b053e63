"""Token ids to text as they come; no piece ends inside a character."""

from __future__ import annotations

from collections.abc import Iterable

from samovar.text.tokenizer import Tokenizer
from samovar.text.utf8 import decode_available, decode_replacing


class Detokenizer:
    """The text of one reply, token by token.

    at_start: the tokens start a text, as in Tokenizer.decode: a space that encoding put in front
    of it is taken away.  A reply continues its prompt, so its first space is its own.
    """

    __slots__ = ("_strip_space", "_token_bytes", "_waiting")

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool = False) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._waiting = b""
        self._strip_space = at_start and tokenizer.add_space_prefix

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens settle; a character waits until its last byte is there.

        Bytes that are not UTF-8 come out as U+FFFD, one for each, as soon as that is certain.
        """
        data = b"".join(map(self._token_bytes, ids))
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        try:
            return data.decode()
        except UnicodeDecodeError:
            text, self._waiting = decode_available(data)
            return text

    def finish(self) -> str:
        """What still waited: bytes of a character that was never finished, as U+FFFD."""
        waiting, self._waiting = self._waiting, b""
        return decode_replacing(waiting)
