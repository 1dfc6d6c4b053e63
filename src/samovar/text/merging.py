"""The `tokenizers` library set up for one vocabulary; only plain text ever reaches it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer as MergeTokenizer
from tokenizers import models

from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError
from samovar.text.pretokenizers import word_rule
from samovar.text.sentencepiece import ranked_merges

_UNDEFINED, _NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 0, 1, 2, 3, 5, 6
_PIECES = frozenset((_UNDEFINED, _NORMAL, _UNUSED))

# Pieces are built up character by character to find their parts; SentencePiece's own limit is
# 16 by default, so this only stops files made to waste time.
_LONGEST_PIECE = 256


def _byte_alphabet() -> Mapping[str, int]:
    """The characters by which byte-level vocabularies write bytes.

    Printable bytes of Latin-1 stand for themselves, the others for U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(list(rest))})
    return MappingProxyType(alphabet)


BYTE_ALPHABET = _byte_alphabet()


def bytes_of_byte_level(text: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for.

    A token with other characters than the alphabet's was added as text and is just that.
    """
    try:
        return bytes(map(BYTE_ALPHABET.__getitem__, text))
    except KeyError:
        return text.encode("utf-8", "surrogatepass")


def byte_level_backend(source: TokenizerSource, kinds: Sequence[int]) -> MergeTokenizer:
    """Byte-level BPE: the file's own merges, words cut as its pre-tokenizer says.

    A byte that the vocabulary has no token for is left out, as the original tokenizers do.
    """
    rule = word_rule(source.pre)
    # Without the control tokens no merge and no whole word can ever give one.
    vocab = {
        text: i
        for i, (text, kind) in enumerate(zip(source.tokens, kinds, strict=True))
        if kind not in (_CONTROL, _UNKNOWN)
    }
    texts = frozenset(source.tokens)
    merges: dict[tuple[str, str], None] = {}
    for rank, merge in enumerate(source.merges):
        left, _, right = merge.partition(" ")
        if left in vocab and right in vocab and left + right in vocab:
            merges.setdefault((left, right))
        elif left + right not in texts:
            raise CheckpointError(
                f"tokenizer.ggml.merges[{rank}]: {merge[:60]!r} gives no token of the vocabulary"
            )
    backend = MergeTokenizer(models.BPE(vocab, list(merges), ignore_merges=rule.whole_words))
    backend.pre_tokenizer = rule.pre_tokenizer()
    normalizer = rule.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    return backend


def sentencepiece_backend(
    source: TokenizerSource, kinds: Sequence[int], cache_dir: Path | None
) -> MergeTokenizer:
    """SentencePiece by scores, over the whole text; what has no piece is spelled in bytes."""
    if len(source.scores) != len(source.tokens):
        raise CheckpointError(
            f"tokenizer.ggml.scores: {len(source.scores)} entries for {len(source.tokens)} tokens"
        )
    tokens = source.tokens
    bytes_ = [i for i, kind in enumerate(kinds) if kind == _BYTE]
    if len(bytes_) != 256:
        raise CheckpointError(
            f"tokenizer.ggml.tokens: {len(bytes_)} byte tokens, SentencePiece needs all 256"
        )
    pieces = [i for i, kind in enumerate(kinds) if kind in _PIECES and tokens[i]]
    for i in pieces:
        if len(tokens[i]) > _LONGEST_PIECE:
            raise CheckpointError(
                f"tokenizer.ggml.tokens[{i}]: {len(tokens[i])} characters, at most {_LONGEST_PIECE}"
            )
    scores = {tokens[i]: source.scores[i] for i in pieces}
    if not all(map(math.isfinite, scores.values())):
        bad = next(i for i in pieces if not math.isfinite(source.scores[i]))
        raise CheckpointError(
            f"tokenizer.ggml.scores[{bad}]: {source.scores[bad]} is not a finite number"
        )
    vocab = {tokens[i]: i for i in (*bytes_, *pieces)}
    merges = ranked_merges(scores, cache_dir=cache_dir, cache_key=source.cache_key)
    return MergeTokenizer(models.BPE(vocab, merges, byte_fallback=True))
