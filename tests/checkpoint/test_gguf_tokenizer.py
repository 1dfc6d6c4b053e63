"""What a file states of its vocabulary, and what cannot be a vocabulary."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import tiny_gguf
from gguf_writer import Typed
from samovar.checkpoint import open_checkpoint
from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError, UnsupportedModel
from samovar.text.tokenizer import Tokenizer


def bpe(tmp_path: Path, **changes: Any) -> TokenizerSource:
    keys = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
    return open_checkpoint(tiny_gguf.llama(**keys).write(tmp_path / "m.gguf")).tokenizer


def spm(tmp_path: Path, **changes: Any) -> TokenizerSource:
    keys = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
    return open_checkpoint(tiny_gguf.gemma3(**keys).write(tmp_path / "m.gguf")).tokenizer


def test_byte_level_vocabulary(tmp_path: Path) -> None:
    source = bpe(tmp_path, eot_token_id=2)
    assert source.model == "gpt2"
    assert source.pre == "gpt-2"
    assert [*source.tokens[:4], *source.tokens[-2:]] == [
        "<|a|>",
        "<|b|>",
        "<|c|>",
        "!",
        "AB",
        "ABC",
    ]
    assert [*source.token_types] == [3] * 3 + [1] * 61
    assert source.merges == ["A B", "AB C"]
    assert not source.scores
    assert (source.bos_id, source.eos_id, source.pad_id) == (0, 1, 2)
    assert source.end_ids == [1, 2]
    assert source.unk_id is None
    assert not source.add_bos
    assert not source.add_eos
    assert not source.add_space_prefix


def test_every_declared_end_counts(tmp_path: Path) -> None:
    ends = {"eos_token_id": 1, "eot_token_id": 5, "eom_token_id": 6, "eos_token_ids": [1, 7]}
    assert bpe(tmp_path, **ends).end_ids == [1, 5, 6, 7]
    assert Tokenizer.build(bpe(tmp_path, **ends)).end_ids == {1, 5, 6, 7}
    assert not bpe(tmp_path, eos_token_id=None).end_ids


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    source = spm(tmp_path)
    assert source.model == "llama"
    assert source.pre is None
    assert source.tokens[3] == "▁0"
    assert source.scores[:3] == [0.0, -1.0, -2.0]
    assert not source.merges
    assert source.unk_id == 0
    assert source.add_bos
    assert source.add_space_prefix
    assert not spm(tmp_path, add_space_prefix=False, add_bos_token=False).add_space_prefix


def test_llama3_files_that_do_not_say_so_start_with_bos(tmp_path: Path) -> None:
    assert bpe(tmp_path, pre="llama-bpe").add_bos
    assert not bpe(tmp_path, pre="llama-bpe", add_bos_token=False).add_bos


def test_cache_key_names_the_content(tmp_path: Path) -> None:
    key = bpe(tmp_path).cache_key
    assert bpe(tmp_path).cache_key == key
    assert bpe(tmp_path, merges=["A B", "AB D"]).cache_key != key
    assert bpe(tmp_path, pre="smollm").cache_key != key


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": None}, "model: this key is missing"),
        ({"tokens": None}, "tokens: this key is missing"),
        ({"merges": None}, "merges: this key is missing"),
        ({"merges": ["AB"]}, r"merges\[0\]: found 'AB'"),
        ({"merges": ["A B", " B"]}, r"merges\[1\]: found ' B'"),
        ({"merges": [""]}, r"merges\[0\]: found ''"),
        ({"merges": [1]}, "merges: found an array of 1, expected an array of strings"),
        ({"token_type": Typed("i32", [1] * 63)}, "token_type: has 63 entries, expected 64"),
        ({"token_type": Typed("i32", [1] * 63 + [7])}, r"token_type\[63\]: found 7"),
        ({"token_type": Typed("f32", [1.0] * 64)}, "token_type: found an array of 64"),
        ({"bos_token_id": 64}, "bos_token_id: found 64, expected an integer from 0 to 63"),
        ({"eos_token_id": Typed("i32", -1)}, "eos_token_id: found -1"),
        ({"eom_token_id": 64}, "eom_token_id: found 64"),
        ({"eos_token_ids": [1, 64]}, r"eos_token_ids\[1\]: found 64"),
        ({"eos_token_ids": 1}, "eos_token_ids: found 1, expected an array"),
        ({"eos_token_id": "x"}, "eos_token_id: found 'x'"),
        ({"add_bos_token": 1}, "add_bos_token: found 1, expected true or false"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id: this key is missing"),
    ],
)
def test_impossible_byte_level_vocabularies(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{match}"):
        bpe(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"scores": None}, "scores: this key is missing"),
        ({"scores": [0.0] * 63}, "scores: has 63 entries"),
        ({"scores": [0.0] * 63 + [math.nan]}, r"scores\[63\]: found nan"),
    ],
)
def test_impossible_sentencepiece_vocabularies(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{match}"):
        spm(tmp_path, **changes)


def test_other_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'bert' is not supported"):
        bpe(tmp_path, model="bert")
