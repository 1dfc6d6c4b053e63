"""SentencePiece: joining by score, against its rule written down plainly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError, UnsupportedModel
from samovar.text.tokenizer import Tokenizer

MakeSource = Callable[..., TokenizerSource]
PIECES = {"▁": -9.0, "h": -8.0, "e": -7.0, "he": -1.0, "▁he": -2.0, "l": -6.0, "ll": -3.0}


def joined_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """Join the neighbours with the best score, the leftmost among equals, until none are left."""
    parts = list(text)
    while True:
        joins = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not joins:
            return parts
        _, i = min(joins)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


@given(
    pieces=st.lists(st.text("ab▁", min_size=1, max_size=7), unique=True, max_size=25),
    order=st.randoms(use_true_random=False),
    texts=st.lists(st.text("ab ", max_size=30), max_size=8),
)
def test_ranked_merges_equal_joining_by_score(
    sentencepiece: MakeSource, pieces: list[str], order: object, texts: list[str]
) -> None:
    """Whatever the scores: also where a piece is better than the pieces it is made of."""
    shuffled = sorted({*pieces, "a", "b", "▁"})
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    scores = {piece: -float(i) for i, piece in enumerate(shuffled)}
    tokenizer = Tokenizer.build(sentencepiece(scores))
    for text in texts:
        ids = tokenizer.encode(text, special=False, bos=False)
        assert texts_of(tokenizer, ids) == joined_by_score(text.replace(" ", "▁"), scores)


def test_bytes_for_what_has_no_piece(sentencepiece: MakeSource) -> None:
    tokenizer = Tokenizer.build(sentencepiece(PIECES))
    ids = tokenizer.encode("heé\0<0x41>", special=False, bos=False)
    assert texts_of(tokenizer, ids)[:4] == ["he", "<0xC3>", "<0xA9>", "<0x00>"]
    assert tokenizer.decode(ids) == "heé\0<0x41>"
    assert tokenizer.encode("", special=False) == [1]


def test_space_in_front(sentencepiece: MakeSource) -> None:
    tokenizer = Tokenizer.build(sentencepiece(PIECES, add_space_prefix=True))
    ids = tokenizer.encode("he</s>he he", special=True, bos=False)
    assert texts_of(tokenizer, ids) == ["▁he", "</s>", "▁he", "▁he"]
    assert tokenizer.decode(ids) == "he he he"
    assert texts_of(tokenizer, tokenizer.encode("</s>", special=False, bos=False))[0] == "▁"
    plain = Tokenizer.build(sentencepiece(PIECES))
    assert texts_of(plain, plain.encode("he he", special=True)) == ["<s>", "he", "▁he"]
    assert plain.decode(plain.encode(" he", special=True)) == " he"


def test_user_defined_tokens_come_first(sentencepiece: MakeSource) -> None:
    tokenizer = Tokenizer.build(sentencepiece(PIECES, user_defined=("  ", "   ", "eh")))
    ids = tokenizer.encode("hehe    he", special=False, bos=False)
    assert texts_of(tokenizer, ids) == ["h", "eh", "e", "   ", "▁he"]
    assert tokenizer.decode(ids) == "hehe    he"


def test_the_cache_is_used_and_a_damaged_one_ignored(
    sentencepiece: MakeSource, tmp_path: Path
) -> None:
    source = sentencepiece(PIECES)
    want = Tokenizer.build(source).encode("hehelll he", special=False)
    Tokenizer.build(source, cache_dir=tmp_path / "deep" / "down")
    (cached,) = (tmp_path / "deep" / "down").iterdir()
    whole = cached.read_bytes()
    other = sentencepiece({**PIECES, "lll": -0.5})
    for content in (whole, b"", whole[:-1], whole[:-1] + b"\xff", b"x" * len(whole)):
        cached.write_bytes(content)
        built = Tokenizer.build(source, cache_dir=cached.parent)
        assert built.encode("hehelll he", special=False) == want
        # Another vocabulary under the same key is not taken for this one.
        clash = Tokenizer.build(other, cache_dir=cached.parent)
        assert texts_of(clash, clash.encode("lll", special=False, bos=False)) == ["lll"]
    unwritable = tmp_path / "file"
    unwritable.write_text("")
    assert Tokenizer.build(source, cache_dir=unwritable).encode("he", special=False)


@pytest.mark.parametrize(
    ("pieces", "fields", "error", "message"),
    [
        ({**PIECES, "hel": -3.0}, {}, UnsupportedModel, r"same score"),
        ({**PIECES, "x": float("nan")}, {}, CheckpointError, r"tokenizer\.ggml\.scores\[266\]"),
        ({"x" * 300: 0.0}, {}, CheckpointError, r"tokens\[259\]: 300 characters"),
        (PIECES, {"scores": [0.0]}, CheckpointError, r"tokenizer\.ggml\.scores: 1 entries"),
        (PIECES, {"token_types": [1] * 266}, CheckpointError, r"0 byte tokens"),
        (PIECES, {"token_types": [6] * 266}, CheckpointError, r"tokens\[0\]: '<unk>'"),
    ],
)
def test_damaged_vocabularies(
    sentencepiece: MakeSource,
    pieces: dict[str, float],
    fields: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=f"^tiny.gguf: .*{message}"):
        Tokenizer.build(sentencepiece(pieces, **fields))
