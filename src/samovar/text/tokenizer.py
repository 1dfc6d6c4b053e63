"""Text to token ids and back, from the vocabulary that a GGUF file states.

The `tokenizers` library does the merging.  Tokens that are matched as whole texts (control and
user-defined ones) are cut out here, before it: that keeps them out of reach of any merge.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path

from tokenizers import Tokenizer as MergeTokenizer

from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError
from samovar.text.merging import byte_level_backend, bytes_of_byte_level, sentencepiece_backend
from samovar.text.special import SpecialSplitter
from samovar.text.utf8 import decode_replacing


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Plain numbers: comparing them is done for each of some hundred thousand tokens.
_USER_DEFINED, _BYTE = int(TokenKind.USER_DEFINED), int(TokenKind.BYTE)
_CONTROL_KINDS = frozenset((int(TokenKind.CONTROL), int(TokenKind.UNKNOWN)))

_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")

# Tokens that end a turn wherever they occur.  Many files mark them as user-defined, because
# their makers added them later; they are control tokens all the same.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
)
# These end a text only as control tokens: Gemma has an ordinary `</s>`, the HTML tag.
_END_IF_CONTROL = ("</s>", "<eos>")


class Tokenizer:
    """One vocabulary.  Immutable after building; any number of threads may use it.

    vocab_size: number of ids.  bos_id: the token that starts a text, if there is one.
    add_bos: whether every text starts with it.  end_ids: the tokens that end a reply.
    add_space_prefix: whether a text (and what follows a special token) gets a space in front,
    which decoding takes away again.
    """

    __slots__ = (
        "_backend",
        "_bytes",
        "_is_byte_level",
        "_kinds",
        "_plain_splitter",
        "_special_splitter",
        "_texts",
        "add_bos",
        "add_eos",
        "add_space_prefix",
        "bos_id",
        "control_ids",
        "end_ids",
        "eos_id",
        "pad_id",
        "unk_id",
        "user_defined_ids",
        "vocab_size",
    )

    def __init__(self, source: TokenizerSource, kinds: list[int], backend: MergeTokenizer) -> None:
        self._texts = source.tokens
        self._kinds = kinds
        self._backend = backend
        self._is_byte_level = source.model == "gpt2"
        self._bytes: list[bytes | None] = [None] * len(source.tokens)
        self.vocab_size = len(source.tokens)
        self.bos_id = source.bos_id
        self.eos_id = source.eos_id
        self.unk_id = source.unk_id
        self.pad_id = source.pad_id
        self.add_bos = source.add_bos and source.bos_id is not None
        self.add_eos = source.add_eos and source.eos_id is not None
        self.add_space_prefix = source.add_space_prefix and not self._is_byte_level
        self.end_ids = _end_ids(source, kinds)
        # A control token of one character is never matched: no mark would fit inside it, so
        # nothing could keep user text from becoming it.
        self.control_ids = {
            self._texts[i]: i
            for i, kind in enumerate(kinds)
            if kind in _CONTROL_KINDS and len(self._texts[i]) > 1
        }
        self.user_defined_ids = {
            self._texts[i]: i
            for i, kind in enumerate(kinds)
            if kind == _USER_DEFINED and self._texts[i]
        }
        self._plain_splitter = SpecialSplitter(self.user_defined_ids)
        self._special_splitter = SpecialSplitter({**self.user_defined_ids, **self.control_ids})

    @classmethod
    def build(cls, source: TokenizerSource, *, cache_dir: Path | None = None) -> Tokenizer:
        """The tokenizer of a vocabulary.

        cache_dir: where what is slow to derive is kept under the vocabulary's own key; a
        damaged or unwritable cache only costs time.
        Sets TOKENIZERS_PARALLELISM to false unless it is set: one prompt is one piece of work,
        and a second thread pool would compete with the engine's.
        Raises CheckpointError, or UnsupportedModel for a vocabulary that cannot be had exactly;
        the message starts with the file.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            kinds = _checked_kinds(source)
            if source.model == "gpt2":
                backend = byte_level_backend(source, kinds)
            else:
                backend = sentencepiece_backend(source, kinds, cache_dir)
            return cls(source, kinds, backend)
        except CheckpointError as error:
            raise type(error)(f"{source.path}: {error}") from None

    def encode(
        self, text: str, *, special: bool, bos: bool | None = None, drop: str = ""
    ) -> list[int]:
        """The ids of `text`.

        special: control tokens are matched by their text (user-defined ones always are).
        bos: None does as the vocabulary says (its start and its end token), True adds the
        start token if there is one, False adds nothing.
        drop: a string that is taken out after special tokens have been matched, before merging.
        The GIL is released while merging.
        """
        pieces: list[int | None] = []  # None stands for the next body's ids
        bodies: list[str] = []
        after_special = True
        splitter = self._special_splitter if special else self._plain_splitter
        for piece in splitter.split(text):
            if isinstance(piece, int):
                pieces.append(piece)
                after_special = True
                continue
            body = piece.replace(drop, "") if drop else piece
            if not body:
                continue
            if not self._is_byte_level:
                body = body.replace(" ", "▁")
                if self.add_space_prefix and after_special:
                    body = "▁" + body
            bodies.append(body)
            pieces.append(None)
            after_special = False
        encoded = iter(self._backend.encode_batch_fast(bodies, add_special_tokens=False))
        ids: list[int] = []
        if self.bos_id is not None and (self.add_bos if bos is None else bos):
            ids.append(self.bos_id)
        for known in pieces:
            if known is None:
                ids += next(encoded).ids
            else:
                ids.append(known)
        if bos is None and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole sequence; each byte that is not UTF-8 becomes U+FFFD.

        Where encoding puts a space in front, one leading space is taken away.
        """
        data = b"".join(map(self.token_bytes, ids))
        if self.add_space_prefix and data.startswith(b" "):
            data = data[1:]
        return decode_replacing(data)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text; control, unknown and unused tokens add nothing."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._make_bytes(token)
        return known

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included."""
        return self._texts[token]

    def is_control(self, token: int) -> bool:
        """Whether a token steers the model and is no text."""
        return self._kinds[token] in _CONTROL_KINDS

    def _make_bytes(self, token: int) -> bytes:
        text, kind = self._texts[token], self._kinds[token]
        if kind == TokenKind.USER_DEFINED:
            return text.encode("utf-8", "surrogatepass")
        if kind == TokenKind.BYTE:
            return bytes((int(text[3:5], 16),))
        if kind != TokenKind.NORMAL:
            return b""
        if self._is_byte_level:
            return bytes_of_byte_level(text)
        return text.replace("▁", " ").encode("utf-8", "surrogatepass")


def _checked_kinds(source: TokenizerSource) -> list[int]:
    """The kind of each token, with the tokens that are control tokens by their role set so."""
    count = len(source.tokens)
    kinds = list(source.token_types) or [int(TokenKind.NORMAL)] * count
    if len(kinds) != count:
        raise CheckpointError(f"tokenizer.ggml.token_type: {len(kinds)} entries for {count} tokens")
    ids = _ids_by_text(source.tokens)
    for name, token in (
        ("bos_token_id", source.bos_id),
        ("eos_token_id", source.eos_id),
        ("unknown_token_id", source.unk_id),
        ("padding_token_id", source.pad_id),
        *(("end of a reply", end) for end in source.end_ids),
    ):
        if token is not None and not 0 <= token < count:
            raise CheckpointError(
                f"tokenizer.ggml.{name}: {token} is not one of the {count} tokens"
            )
    for i, kind in enumerate(kinds):
        if kind == _BYTE and not _BYTE_TOKEN.fullmatch(source.tokens[i]):
            raise CheckpointError(
                f"tokenizer.ggml.tokens[{i}]: {source.tokens[i][:60]!r} is marked as a byte, "
                "but is not written as <0x00> to <0xFF>"
            )
    control = [source.bos_id, source.eos_id, *source.end_ids, *map(ids.get, _END_OF_TURN)]
    for token in control:
        if token is not None and kinds[token] != TokenKind.BYTE:
            kinds[token] = int(TokenKind.CONTROL)
    return kinds


def _ids_by_text(tokens: Sequence[str]) -> dict[str, int]:
    ids = {text: i for i, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        first: dict[str, int] = {}
        for i, text in enumerate(tokens):
            if text and first.setdefault(text, i) != i:
                raise CheckpointError(
                    f"tokenizer.ggml.tokens: {text[:60]!r} is there twice, as {first[text]} and {i}"
                )
    return ids


def _end_ids(source: TokenizerSource, kinds: Sequence[int]) -> frozenset[int]:
    names = {*_END_OF_TURN, *_END_IF_CONTROL}
    found = {
        source.tokens[i]: i
        for i, kind in enumerate(kinds)
        if kind in _CONTROL_KINDS and source.tokens[i] in names
    }
    if "<|return|>" in found and "<|call|>" in found:
        # Where a reply ends with one of these, <|end|> only parts its channels.
        found.pop("<|end|>", None)
    eos = () if source.eos_id is None else (source.eos_id,)
    return frozenset((*eos, *source.end_ids, *found.values()))
