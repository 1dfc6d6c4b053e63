"""Log probabilities as replies show them: each token with its part of the text.

The bytes of the tokens, one after the other, are those of the text: a token is told together with
the last of its text, and where a stop string cuts the text it cuts the tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.engine.request import Delta, TokenLogprob
from samovar.text.detokenizer import Detokenizer
from samovar.text.tokenizer import Tokenizer
from samovar.text.utf8 import decode_replacing

LEAST_LOGPROB = -9999.0  # JSON has no infinity
TEXT_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True, slots=True)
class TextToken:
    """One token of a choice's text.

    data: the bytes that it gave to the text.  offset: characters of the text before it.
    logprob: None for the first token of a prompt, which follows nothing.
    """

    token: int
    data: bytes
    offset: int
    logprob: TokenLogprob | None


class ReplyTokens:
    """Gives the tokens of one reply as soon as all of their text has been given.

    offset: characters of the choice's text before the reply.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], offset: int = 0) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._end_ids = end_ids
        self._offset = offset
        self._data = b""  # bytes of tokens whose text has not come yet
        self._waiting: deque[tuple[TokenLogprob, bytes]] = deque()
        self._begun = 0  # bytes of the first waiting token whose text has come
        self._begun_at = offset  # characters before that token

    def push(self, delta: Delta) -> list[TextToken]:
        """The tokens that a delta's text completes.  An end token is none of the text's."""
        for logprob in delta.logprobs:
            if logprob.token not in self._end_ids:
                data = self._token_bytes(logprob.token)
                self._waiting.append((logprob, data))
                self._data += data
        complete = self._empty_ones()
        for character in delta.text:
            data = character.encode("utf-8", "surrogatepass")
            # Otherwise it is U+FFFD for a byte that belongs to no character.
            count = len(data) if self._data.startswith(data) else 1
            self._data = self._data[count:]
            complete += self._take(count)
            self._offset += 1
            complete += self._empty_ones()
        if delta.finish_reason is not None and self._begun:
            logprob, data = self._waiting.popleft()
            complete.append(TextToken(logprob.token, data[: self._begun], self._begun_at, logprob))
        return complete

    def _take(self, count: int) -> list[TextToken]:
        """Counts bytes of the character at the current offset."""
        complete = []
        while count and self._waiting:
            logprob, data = self._waiting[0]
            if not self._begun:
                self._begun_at = self._offset
            taken = min(count, len(data) - self._begun)
            self._begun += taken
            count -= taken
            if self._begun == len(data):
                self._waiting.popleft()
                complete.append(TextToken(logprob.token, data, self._begun_at, logprob))
                self._begun = 0
        return complete

    def _empty_ones(self) -> list[TextToken]:
        """Tokens without any text, such as control tokens in the middle of a reply."""
        complete = []
        while self._waiting and not self._waiting[0][1]:
            logprob, data = self._waiting.popleft()
            complete.append(TextToken(logprob.token, data, self._offset, logprob))
        return complete


def prompt_tokens(
    ids: Sequence[int], logprobs: Iterable[TokenLogprob], text: str, tokenizer: Tokenizer
) -> list[TextToken]:
    """The tokens of a prompt that is shown as `text`.

    Control tokens are text if the client wrote them so, and spaces that encoding put in front of
    words are not.
    """
    detokenizer = Detokenizer(tokenizer)
    tokens = []
    offset = 0
    for token, logprob in zip(ids, [None, *logprobs], strict=True):
        data = tokenizer.token_bytes(token)
        piece = detokenizer.push((token,))
        if not data and text.startswith(tokenizer.token_text(token), offset):
            piece = tokenizer.token_text(token)
        elif piece.startswith(" ") and not text.startswith(piece, offset):
            piece, data = piece[1:], data.removeprefix(b" ")
        tokens.append(TextToken(token, data, min(offset, len(text)), logprob))
        offset += len(piece)
    return tokens


def chat_logprobs(tokens: Iterable[TextToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for each in tokens:
        assert each.logprob is not None
        entry = _entry(each.token, each.data, each.logprob.logprob, tokenizer)
        entry["top_logprobs"] = [
            _entry(token, tokenizer.token_bytes(token), logprob, tokenizer)
            for token, logprob in each.logprob.top
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def _entry(token: int, data: bytes, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    is_text = bool(tokenizer.token_bytes(token))
    text = decode_replacing(data) if is_text else tokenizer.token_text(token)
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}


def text_logprobs(tokens: Iterable[TextToken], tokenizer: Tokenizer) -> dict[str, list[Any]]:
    """The `logprobs` of a text choice."""
    found: dict[str, list[Any]] = {name: [] for name in TEXT_LOGPROBS}
    for each in tokens:
        logprob = each.logprob
        found["tokens"].append(_spelled(each.token, each.data, tokenizer))
        found["token_logprobs"].append(logprob and max(logprob.logprob, LEAST_LOGPROB))
        found["top_logprobs"].append(logprob and _top(logprob, tokenizer))
        found["text_offset"].append(each.offset)
    return found


def _top(logprob: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The most probable tokens, and the token itself, which may be another."""
    found: dict[str, float] = {}
    for token, value in (*logprob.top, (logprob.token, logprob.logprob)):
        name = _spelled(token, tokenizer.token_bytes(token), tokenizer)
        found.setdefault(name, max(value, LEAST_LOGPROB))
    return found


def _spelled(token: int, data: bytes, tokenizer: Tokenizer) -> str:
    """A token's text as a key; where it is no valid UTF-8, its bytes, as OpenAI writes them."""
    if not tokenizer.token_bytes(token):
        return tokenizer.token_text(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
