"""Log probabilities as replies show them: each token with its part of the text.

The bytes of the tokens, one after the other, are those of the text: a token is told together with
the last of its text, and where a stop string cuts the text it cuts the tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from samovar.engine.request import Delta, TokenLogprob
from samovar.text.tokenizer import Tokenizer
from samovar.text.utf8 import decode_replacing

LEAST_LOGPROB = -9999.0  # JSON has no infinity
# Tokens told at once. With 20 alternatives each, to spell and to encode that many takes about 3 ms,
# and everybody else waits.
MAX_TOLD = 64
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


class Told(NamedTuple):
    """Text of a choice, and the tokens whose text is complete with it: MAX_TOLD of them at most."""

    text: str
    tokens: Sequence[TextToken]


class _Alignment:
    """Tokens on one side, their text on the other: a token is done when all of its text has come.

    offset: characters that have come, or were there before.
    """

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._data = (
            bytearray()
        )  # of the tokens that wait, from the first byte whose text has not come
        self._waiting: deque[tuple[int, bytes, TokenLogprob | None]] = deque()
        self._begun = 0  # bytes of the first waiting token whose text has come
        self._begun_at = offset  # characters before that token

    def add(self, token: int, data: bytes, logprob: TokenLogprob | None) -> None:
        """Adds a token that gives these bytes to the text."""
        self._waiting.append((token, data, logprob))
        self._data += data

    def take(self, text: str) -> Iterator[Told]:
        """The text in slices, and with each the tokens that it completes.

        Tokens without any text are among them.  There is one slice at least.
        """
        done = self._empty_ones()
        begin = at = 0
        for end, character in enumerate(text, 1):
            data = character.encode("utf-8", "surrogatepass")
            # Otherwise it is U+FFFD for a byte that belongs to no character.
            count = len(data) if self._data.startswith(data, at) else 1
            at += count
            while count and self._waiting:
                self._begun_at = self._begun_at if self._begun else self._offset
                taken = min(count, len(self._waiting[0][1]) - self._begun)
                self._begun += taken
                count -= taken
                if self._begun == len(self._waiting[0][1]):
                    done.append(self._pop())
            self._offset += 1
            done += self._empty_ones()
            if len(done) >= MAX_TOLD:
                yield from _slices(text[begin:end], done)
                begin, done = end, []
        del self._data[:at]
        yield from _slices(text[begin:], done)

    def cut(self) -> Iterator[Told]:
        """The token whose text ends in its middle, if there is one: what came of it."""
        if self._begun:
            yield Told("", [self._pop(self._begun)])

    def rest(self) -> Iterator[Told]:
        """All tokens whose text has not come."""
        done = []
        while self._waiting:
            self._begun_at = self._begun_at if self._begun else self._offset
            done.append(self._pop())
        yield from _slices("", done)

    def _empty_ones(self) -> list[TextToken]:
        done = []
        while self._waiting and not self._waiting[0][1]:
            self._begun_at = self._offset
            done.append(self._pop())
        return done

    def _pop(self, length: int | None = None) -> TextToken:
        token, data, logprob = self._waiting.popleft()
        self._begun = 0
        return TextToken(token, data[:length], self._begun_at, logprob)


def _slices(text: str, tokens: Sequence[TextToken]) -> Iterator[Told]:
    yield Told(text, tokens[:MAX_TOLD])
    for begin in range(MAX_TOLD, len(tokens), MAX_TOLD):
        yield Told("", tokens[begin : begin + MAX_TOLD])


class ReplyTokens:
    """Gives the tokens of one reply as soon as all of their text has been given.

    offset: characters of the choice's text before the reply.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], offset: int = 0) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._end_ids = end_ids
        self._alignment = _Alignment(offset)

    def push(self, delta: Delta) -> list[Told]:
        """A delta's text with the tokens that it completes.  An end token is none of the text's."""
        for logprob in delta.logprobs:
            if logprob.token not in self._end_ids:
                self._alignment.add(logprob.token, self._token_bytes(logprob.token), logprob)
        told = list(self._alignment.take(delta.text))
        return told if delta.finish_reason is None else [*told, *self._alignment.cut()]


def prompt_tokens(
    ids: Sequence[int], logprobs: Iterable[TokenLogprob], text: str, tokenizer: Tokenizer
) -> list[Told]:
    """A prompt that is shown as `text`, with its tokens."""
    shown = [tokenizer.token_bytes(token) for token in ids]
    if text == decode_replacing(b"".join(shown)):
        pass
    elif text == tokenizer.decode(ids):  # without the space that encoding puts in front
        first = next(i for i, data in enumerate(shown) if data)
        shown[first] = shown[first].removeprefix(b" ")
    else:
        shown = _as_written(ids, text.encode("utf-8", "surrogatepass"), tokenizer)
    alignment = _Alignment()
    for token, data, logprob in zip(ids, shown, [None, *logprobs], strict=True):
        alignment.add(token, data, logprob)
    return [*alignment.take(text), *alignment.rest()]


def _as_written(ids: Sequence[int], text: bytes, tokenizer: Tokenizer) -> list[bytes]:
    """What each token is in the text that was tokenized.

    Control tokens are as the client wrote them, and a space that encoding put in front is not
    there.
    """
    shown = []
    at = 0
    for token in ids:
        data = tokenizer.token_bytes(token)
        if not data:
            spelled = tokenizer.token_text(token).encode("utf-8", "surrogatepass")
            data = spelled if text.startswith(spelled, at) else b""
        elif not text.startswith(data, at):
            data = data.removeprefix(b" ")
        shown.append(data)
        at += len(data)
    return shown


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
