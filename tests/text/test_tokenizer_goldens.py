"""Real vocabularies: llama.cpp's tokens, or the original tokenizer's where the two differ."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.checkpoint.base import Checkpoint
from samovar.text.template import ChatTemplate
from samovar.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def check(tokenizer: Tokenizer, rows: list[tuple[str, list[int], list[int]]]) -> None:
    for text, special, plain in rows:
        assert tokenizer.encode(text, special=True, bos=False) == special, text
        assert tokenizer.encode(text, special=False, bos=False) == plain, text
        assert not any(map(tokenizer.is_control, plain)), text


def test_smollm2(smollm2: Checkpoint) -> None:
    tokenizer = Tokenizer.build(smollm2.tokenizer)
    rows = golden("tokenizer_smollm2.json")
    check(tokenizer, rows)
    for text, _, plain in rows:
        assert tokenizer.decode(plain) == text
    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<|im_end|>", "<|endoftext|>"}


def test_gemma3(gemma3: Checkpoint, tmp_path: Path) -> None:
    tokenizer = Tokenizer.build(gemma3.tokenizer, cache_dir=tmp_path)
    rows = golden("tokenizer_gemma3.json")
    check(tokenizer, rows)
    for text, _, plain in rows:
        assert tokenizer.decode(plain) == text.replace("▁", " ")
    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<eos>", "<end_of_turn>"}
    # To Gemma this is the HTML tag, one of its user-defined tokens; llama.cpp takes it for an end.
    assert tokenizer.encode("</s>", special=False, bos=False) == [212]

    spaced = replace(gemma3.tokenizer, add_space_prefix=True)
    check(Tokenizer.build(spaced, cache_dir=tmp_path), golden("tokenizer_space_prefix.json"))


@pytest.mark.parametrize(
    "pre",
    [
        *("default", "gpt-2", "starcoder", "llama-bpe", "smaug-bpe"),
        *("qwen2", "qwen35", "tekken", "gpt-4o"),
    ],
)
def test_pre_tokenizers(smollm2: Checkpoint, pre: str) -> None:
    tokenizer = Tokenizer.build(replace(smollm2.tokenizer, pre=pre))
    rows = golden("tokenizer_pre.json")
    for text, ids in zip(rows["texts"], rows["ids"][pre], strict=True):
        assert tokenizer.encode(text, special=False, bos=False) == ids, text
        if pre.startswith("qwen"):
            assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_conversations(smollm2: Checkpoint) -> None:
    """SmolLM2's own template and the built-in one give what transformers and llama.cpp give."""
    assert smollm2.chat_template is not None
    tokenizer = Tokenizer.build(smollm2.tokenizer)
    own = ChatTemplate.from_jinja(smollm2.chat_template, tokenizer)
    named = ChatTemplate.named("smollm", tokenizer)
    for messages, text, ids in golden("tokenizer_chat.json"):
        assert own.encode(messages) == ids
        assert named.encode(messages) == ids
        if messages[-1]["role"] == "user":
            assert own.render(messages, add_generation_prompt=True) == text
