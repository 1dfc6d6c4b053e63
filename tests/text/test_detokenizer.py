"""Text as it streams: whole characters, one U+FFFD for each bad byte, the same for any cut."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint.base import TokenizerSource
from samovar.text.detokenizer import Detokenizer
from samovar.text.tokenizer import Tokenizer

MakeSource = Callable[..., TokenizerSource]

# Bytes as a model might produce them: characters, their halves, and rubbish.
fragments = st.one_of(
    st.text(max_size=3).map(str.encode),
    st.binary(max_size=3),
    st.sampled_from(["é", "€", "😀", "\U0010ffff"]).flatmap(
        lambda c: st.integers(1, 4).map(lambda n: c.encode()[:n])
    ),
)


@pytest.fixture(scope="module")
def tokenizer(byte_level: MakeSource) -> Tokenizer:
    source = byte_level(("Ã ©", "ð Ł", "Ġ a"), control=("<|x|>",), user_defined=("<é >",))
    return Tokenizer.build(source)


def replaced(data: bytes) -> str:
    return re.sub("[\udc80-\udcff]", "�", data.decode("utf-8", "surrogateescape"))


@given(parts=st.lists(fragments), cuts=st.lists(st.integers(1, 5), min_size=1))
def test_any_cut_gives_the_whole(tokenizer: Tokenizer, parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    detokenizer = Detokenizer(tokenizer)
    pieces, at, turn = [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        pieces.append(detokenizer.push(data[at : at + step]))  # the first 256 ids are the bytes
        at, turn = at + step, turn + 1
        # Only the bytes of an unfinished character wait.
        settled = "".join(pieces)
        assert replaced(data[:at]).startswith(settled)
        assert len(data[:at]) - len(replaced(data[:at])) <= len(data)
        assert len(replaced(data[:at])) - len(settled) <= 3
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == replaced(data) == tokenizer.decode(data)


def test_only_an_unfinished_character_waits(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([byte]) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    assert [detokenizer.push([byte]) for byte in b"\xf0\x9f("] == ["", "", "��("]
    assert [detokenizer.push([byte]) for byte in b"\xff\xed\xa0"] == ["�", "", "��"]
    assert detokenizer.push([0xE2, 0x82]) == ""
    assert detokenizer.finish() == "��"
    assert detokenizer.finish() == ""


def test_tokens_of_several_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é a<é >😀<|x|>!", special=True)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push((i,)) for i in ids) == "é a<é >😀!"
    assert tokenizer.token_bytes(ids[-2]) == b""


def test_leading_space(sentencepiece: MakeSource) -> None:
    source = sentencepiece({"▁": -1.0, "a": -2.0, "▁a": 0.0}, add_space_prefix=True)
    tokenizer = Tokenizer.build(source)
    ids = tokenizer.encode("a a", special=False)
    whole = Detokenizer(tokenizer, at_start=True)
    assert [whole.push((i,)) for i in ids] == ["", "a", " a"]
    assert tokenizer.decode(ids) == "a a"
    # A reply goes on after its prompt, so its first space is text.
    reply = Detokenizer(tokenizer)
    assert reply.push(ids[1:]) == " a a"
