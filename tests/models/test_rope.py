"""Inverse frequencies: exact values, and those that transformers computes."""

from __future__ import annotations

import math
from decimal import localcontext
from pathlib import Path

import numpy as np
import pytest

from samovar.errors import UnsupportedModel
from samovar.models.config import ConfigReader
from samovar.models.rope import Rope

GOLDEN = Path(__file__).parent.parent / "golden"
LLAMA3 = Rope(500000.0, 32, 32.0, 1.0, 4.0, 8192)


def test_frequencies_are_powers_of_the_base() -> None:
    frequencies = Rope(10000.0, 8).inverse_frequencies()
    assert frequencies.tolist() == [1.0, 0.1, 0.01, 0.001]  # correctly rounded


def test_linear_scaling_divides_all() -> None:
    plain, scaled = Rope(1e6, 64), Rope(1e6, 64, factor=8.0)
    np.testing.assert_array_equal(scaled.inverse_frequencies() * 8, plain.inverse_frequencies())


def test_llama3_scaling_keeps_the_fast_and_divides_the_slow() -> None:
    plain = Rope(500000.0, 32).inverse_frequencies()
    turns = 8192 * plain / (2 * math.pi)
    ratio = plain / LLAMA3.inverse_frequencies()
    assert (ratio[turns > 4] == 1).all()
    np.testing.assert_allclose(ratio[turns < 1], 32, rtol=1e-15)
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 0
    assert ((between > 1) & (between < 32)).all()


@pytest.mark.parametrize(("name", "rope"), [("llama", Rope(10000.0, 32)), ("llama_untied", LLAMA3)])
def test_transformers_agrees(name: str, rope: Rope) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")["inv_freq"]
    np.testing.assert_allclose(rope.inverse_frequencies(), golden, rtol=3e-7)


def test_the_thread_s_decimal_context_changes_nothing() -> None:
    expected = LLAMA3.inverse_frequencies()
    with localcontext() as context:
        context.prec = 3
        np.testing.assert_array_equal(LLAMA3.inverse_frequencies(), expected)


def test_both_spellings_of_the_configuration() -> None:
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **scaling}}
    new = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}}
    for config in (old, new):
        assert Rope.read(ConfigReader(config, "model"), 32, theta=1e4) == LLAMA3


def test_llama3_factors_in_the_wrong_order_are_refused() -> None:
    config = {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 4.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    }
    with pytest.raises(UnsupportedModel, match=r"rope_scaling\.low_freq_factor"):
        Rope.read(ConfigReader(config, "model"), 32, theta=1e4)
