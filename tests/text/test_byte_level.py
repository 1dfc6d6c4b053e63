"""Byte-level BPE on a vocabulary of a few hundred tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError, UnsupportedModel
from samovar.text.tokenizer import Tokenizer, TokenKind

MakeSource = Callable[..., TokenizerSource]
MERGES = ("l l", "h e", "he ll", "Ġ w", "1 2", "hell o")


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def test_merges_inside_words_only(byte_level: MakeSource) -> None:
    tokenizer = Tokenizer.build(byte_level(MERGES))
    ids = tokenizer.encode("hello wallhe 12\n", special=True)
    assert texts_of(tokenizer, ids) == ["hello", "Ġw", "a", "ll", "he", "Ġ", "12", "Ċ"]
    smollm = Tokenizer.build(byte_level(MERGES, pre="smollm"))
    assert texts_of(smollm, smollm.encode("12", special=True)) == ["1", "2"]


def test_a_whole_word_needs_no_merges(byte_level: MakeSource) -> None:
    source = byte_level(MERGES)
    source = byte_level(
        MERGES,
        tokens=[*source.tokens, "world"],
        token_types=[*source.token_types, TokenKind.NORMAL],
        pre="llama-bpe",
    )
    tokenizer = Tokenizer.build(source)
    assert texts_of(tokenizer, tokenizer.encode("world worldly", special=True)) == [
        "world",
        *("Ġw", "o", "r", "l", "d", "l", "y"),
    ]


def test_special_tokens(byte_level: MakeSource) -> None:
    source = byte_level(MERGES, control=("<|im_end|>", "<|im"), user_defined=("<t>", "<t><t>"))
    tokenizer = Tokenizer.build(source)
    text = "<|im<|im_end|>he<t><t><t>"
    assert texts_of(tokenizer, tokenizer.encode(text, special=True)) == [
        *("<|im", "<|im_end|>", "he", "<t><t>", "<t>"),
    ]
    plain = tokenizer.encode(text, special=False)
    assert not any(map(tokenizer.is_control, plain))
    assert texts_of(tokenizer, plain)[-2:] == ["<t><t>", "<t>"]
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == "he<t><t><t>"


def test_a_merge_never_gives_a_control_token(byte_level: MakeSource) -> None:
    source = byte_level(("< s", "<s >"))
    types = [*source.token_types[:-1], TokenKind.CONTROL]
    tokenizer = Tokenizer.build(byte_level(("< s", "<s >"), token_types=types, pre="llama-bpe"))
    assert texts_of(tokenizer, tokenizer.encode("<s>", special=False)) == ["<s", ">"]
    assert texts_of(tokenizer, tokenizer.encode("<s>", special=True)) == ["<s>"]


def test_start_and_end(byte_level: MakeSource) -> None:
    source = byte_level(control=("<s>", "</s>"), bos_id=256, eos_id=257, add_bos=True)
    tokenizer = Tokenizer.build(source)
    a = ord("a")
    assert tokenizer.encode("a", special=True) == [256, a]
    assert tokenizer.encode("", special=True) == [256]
    assert tokenizer.encode("a", special=True, bos=False) == [a]
    plain = Tokenizer.build(byte_level(control=("<s>", "</s>"), bos_id=256, eos_id=257))
    assert plain.encode("a", special=True) == [a]
    assert plain.encode("a", special=True, bos=True) == [256, a]
    assert plain.encode("", special=True) == []
    assert plain.end_ids == {257}
    closed = Tokenizer.build(byte_level(control=("<s>", "</s>"), eos_id=257, add_eos=True))
    assert closed.encode("a", special=True) == [a, 257]


def test_declared_end_tokens(byte_level: MakeSource) -> None:
    tokenizer = Tokenizer.build(byte_level(control=("<a>",), eos_id=256, end_ids=[65, 66]))
    assert tokenizer.end_ids == {256, 65, 66}
    assert tokenizer.is_control(65)


def test_end_tokens_by_their_names(byte_level: MakeSource) -> None:
    source = byte_level(user_defined=("<|im_end|>", "</s>", "<|im_start|>"))
    tokenizer = Tokenizer.build(source)
    assert tokenizer.end_ids == {256}
    assert tokenizer.is_control(256)
    harmony = Tokenizer.build(byte_level(control=("<|end|>", "<|return|>", "<|call|>")))
    assert harmony.end_ids == {257, 258}


def test_missing_bytes_are_left_out(byte_level: MakeSource) -> None:
    source = byte_level()
    types = [*source.token_types]
    types[0] = TokenKind.CONTROL
    tokenizer = Tokenizer.build(byte_level(token_types=types))
    assert tokenizer.encode("a\0b", special=True) == [ord("a"), ord("b")]


@given(text=st.text())
def test_every_text_comes_back(byte_level: MakeSource, text: str) -> None:
    for pre in ("gpt-2", "smollm", "llama-bpe"):
        tokenizer = Tokenizer.build(byte_level(MERGES, pre=pre))
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_unknown_pre_tokenizer_is_refused(byte_level: MakeSource) -> None:
    with pytest.raises(
        UnsupportedModel, match=r"^tiny\.gguf: tokenizer\.ggml\.pre: .*'guess'.*smollm"
    ):
        Tokenizer.build(byte_level(pre="guess"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"token_types": [1] * 255 + [6]},
            r"tokenizer\.ggml\.tokens\[255\]: 'ÿ' is marked as a byte",
        ),
        ({"end_ids": [1, 256]}, r"tokenizer\.ggml\..*: 256 is not one of the 256 tokens"),
        ({"merges": ("h e",), "tokens": ["h", "e"], "token_types": ()}, r"merges\[0\]: 'h e'"),
        ({"token_types": [1, 1]}, r"tokenizer\.ggml\.token_type"),
        ({"tokens": ["a"] * 256}, r"tokenizer\.ggml\.tokens: 'a' is there twice"),
        ({"eos_id": 256}, r"tokenizer\.ggml\.eos_token_id: 256"),
    ],
)
def test_damaged_vocabularies(
    byte_level: MakeSource, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"^tiny.gguf: .*{message}"):
        Tokenizer.build(byte_level(**fields))
