"""Tiny vocabularies of both kinds, and the real ones where a model file is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.checkpoint import open_checkpoint
from samovar.checkpoint.base import Checkpoint, TokenizerSource
from samovar.errors import SamovarError
from samovar.hub import resolve
from samovar.text.merging import BYTE_ALPHABET
from samovar.text.tokenizer import TokenKind

MakeSource = Callable[..., TokenizerSource]

_EMPTY = TokenizerSource(
    path="tiny.gguf",
    model="gpt2",
    pre="gpt-2",
    tokens=(),
    token_types=(),
    scores=(),
    merges=(),
    bos_id=None,
    eos_id=None,
    unk_id=None,
    pad_id=None,
    end_ids=(),
    add_bos=False,
    add_eos=False,
    add_space_prefix=False,
    cache_key="tiny",
)


@pytest.fixture(scope="session")
def byte_level() -> MakeSource:
    """byte_level(merges, control, user_defined, **fields): 256 bytes first, then the rest."""

    def make(
        merges: tuple[str, ...] = (),
        control: tuple[str, ...] = (),
        user_defined: tuple[str, ...] = (),
        **fields: object,
    ) -> TokenizerSource:
        alphabet = sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__)
        merged = [merge.replace(" ", "") for merge in merges]
        tokens = [*alphabet, *merged, *control, *user_defined]
        types = [TokenKind.NORMAL] * (256 + len(merged))
        types += [TokenKind.CONTROL] * len(control)
        types += [TokenKind.USER_DEFINED] * len(user_defined)
        source = replace(_EMPTY, tokens=tokens, token_types=types, merges=merges)
        return replace(source, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def sentencepiece() -> MakeSource:
    """sentencepiece(pieces, user_defined, **fields): <unk>, <s>, </s>, 256 bytes, the rest."""

    def make(
        pieces: Mapping[str, float], user_defined: tuple[str, ...] = (), **fields: object
    ) -> TokenizerSource:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        types = [TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.CONTROL]
        types += [TokenKind.BYTE] * 256
        types += [TokenKind.NORMAL] * len(pieces)
        types += [TokenKind.USER_DEFINED] * len(user_defined)
        tokens += [*pieces, *user_defined]
        scores = [0.0] * 259 + [*pieces.values()] + [0.0] * len(user_defined)
        source = replace(
            _EMPTY,
            model="llama",
            pre=None,
            tokens=tokens,
            token_types=types,
            scores=scores,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            add_bos=True,
        )
        return replace(source, **fields)  # type: ignore[arg-type]

    return make


def _cached_model(name: str) -> Checkpoint:
    try:
        path = resolve(name, offline=True).path
    except SamovarError as error:
        pytest.skip(f"the model file of {name} is not in the cache: {error}")
    return open_checkpoint(Path(path))


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return _cached_model("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Checkpoint:
    return _cached_model("gemma3:270m")
