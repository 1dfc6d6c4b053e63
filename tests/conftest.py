"""Fixtures that several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from samovar import hub
from samovar.checkpoint.base import TokenizerSource
from samovar.errors import DownloadError
from samovar.text.tokenizer import Tokenizer

# Function-scoped fixtures are not reset between examples: all of ours are immutable.
settings.register_profile(
    "samovar", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("samovar")


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in a byte-level vocabulary, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model, where it was fetched already; nothing is downloaded by a test."""
    try:
        return hub.resolve("smollm2", offline=True).path
    except DownloadError:
        pytest.skip("needs the default model: samovar pull smollm2")


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Token i is byte i; 256 is the end token."""
    tokens = [*byte_alphabet(), "<|end|>"]
    return Tokenizer.build(
        TokenizerSource(
            path="bytes.gguf",
            model="gpt2",
            pre="gpt-2",
            tokens=tokens,
            token_types=[1] * 256 + [3],
            scores=[],
            merges=[],
            bos_id=None,
            eos_id=256,
            unk_id=None,
            pad_id=None,
            end_ids=[256],
            add_bos=False,
            add_eos=False,
            add_space_prefix=False,
            cache_key="bytes",
        )
    )
