"""`samovar bench` on a tiny real model: what is measured, its shape, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.cli import main
from samovar.engine import limits

from .conftest import TINY_MODEL

FEW = ("--prefill", "5,40", "--depths", "0,33", "--streams", "2,3", "--tokens", "4")


@pytest.fixture(autouse=True)
def quick_limits(tiny_model: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "READ_S", 0.001)
    monkeypatch.setattr(limits, "MULTIPLY_S", 0.001)


def measured(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", "--json", "--repetitions", "1", *arguments]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    result: dict[str, Any] = json.loads(out)
    return result


def places(result: dict[str, Any]) -> list[tuple[int, int]]:
    return [(figure["depth"], figure["streams"]) for figure in result["decode"]]


def test_one_json_object_holds_everything(capfd: pytest.CaptureFixture[str]) -> None:
    result = measured(capfd, *FEW, "--repetitions", "2")
    assert (result["model"], result["threads"], result["kv"]) == (TINY_MODEL.stem, 1, "bf16")
    assert result["repetitions"] == 2
    assert [figure["tokens"] for figure in result["prefill"]] == [5, 40]
    # Each depth with the first number of streams, each number of streams at the first depth.
    assert places(result) == [(0, 2), (33, 2), (0, 3)]
    assert {figure["tokens"] for figure in result["decode"]} == {4}
    for figure in result["prefill"] + result["decode"]:
        low, high = sorted(figure["samples"])
        assert 0 < low <= figure["tokens_per_s"] <= high
        assert figure["spread"] == pytest.approx((high - low) / figure["tokens_per_s"], abs=0.001)
        assert figure["bytes_per_token"] > 0
        assert figure["macs_per_token"] > 0
        assert figure["read_share"] > 0
        assert figure["matmul_share"] > 0
        # Each operation takes at least what either limit asks of it.
        assert figure["limit_share"] >= max(figure["read_share"], figure["matmul_share"]) - 1e-4
    bounds = result["limits"]
    assert bounds["memory_bytes_per_s"] > 0
    assert bounds["weights_bytes_per_s"] > 0
    assert 0 < bounds["weights_bytes"] < result["weight_bytes"] * 2
    assert set(bounds["macs_per_s"]) == {"f32", "bf16"}  # weights, and the default KV cache
    assert "profile" not in result


def test_shares_are_those_of_the_limits(capfd: pytest.CaptureFixture[str]) -> None:
    result = measured(capfd, "--prefill", "none", "--depths", "64", "--streams", "1")
    (figure,) = result["decode"]
    read_s = figure["bytes_per_token"] / result["limits"]["weights_bytes_per_s"]
    assert figure["read_share"] == pytest.approx(read_s * figure["tokens_per_s"], rel=0.01)


def test_the_profile_tells_prefill_decode_and_batches_apart(
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = measured(capfd, *FEW, "--profile")
    assert [profile["case"] for profile in result["profile"]] == [
        "prefill 40",
        "decode at depth 0, 2 streams",
        "decode at depth 33, 2 streams",
        "decode at depth 0, 3 streams",
    ]
    for profile in result["profile"]:
        operations = profile["operations"]
        assert all(row["seconds"] >= 0 and row["calls"] > 0 for row in operations)
        parts = sum(profile[part] for part in ("sample_s", "between_s", "python_s"))
        assert sum(row["seconds"] for row in operations) + parts == pytest.approx(profile["wall_s"])
        assert {row["kind"] for row in operations} >= {"linear", "attention"}
        bounded = {row["kind"] for row in operations if row["limit_s"] is not None}
        assert bounded == {"linear", "attention"}
        assert sum(profile["shares"].values()) == pytest.approx(1)
    num_steps = [
        next(row["calls"] for row in profile["operations"] if "embedding" in row["kind"])
        for profile in result["profile"]
    ]
    assert num_steps == [1, 4, 4, 4]  # the prompts of a decode are not in its profile


def test_a_table_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *FEW, "--repetitions", "1", "--profile"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    for part in ("tokens/s", "prefill 40", "decode at depth 33, 2 streams", "GB/s", "llama.py"):
        assert part in out


def test_defaults_that_do_not_fit_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    result = measured(capfd, "--ctx", "512", "--tokens", "2")
    assert [figure["tokens"] for figure in result["prefill"]] == [128, 512]
    assert places(result) == [(0, 1), (0, 8), (0, 16)]


def test_the_context_grows_with_what_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    result = measured(capfd, "--prefill", "2048", "--depths", "none")
    assert (result["context"], result["decode"]) == (2048, [])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--prefill", "x"], "--prefill is 'x', but must be numbers like 128,512."),
        (["--prefill", "128,"], "--prefill is '128,'"),
        (["--prefill", "-1"], "--prefill is '-1'"),
        (["--prefill", "0"], "--prefill holds 0, but must be from 1 to"),
        (["--streams", "none"], "--streams is 'none'"),
        (["--streams", "5000"], "--streams holds 5000, but must be from 1 to 4096."),
        (["--tokens", "0"], "--tokens"),
        (["--prefill", "none", "--depths", "none"], "nothing to measure"),
        (["--prefill", "2049"], "--prefill: prefill 2049 needs a context of 2049 tokens, but this"),
        (["--depths", "2047"], "needs a context of 2112 tokens, but this model's maximum is 2048."),
        (["--depths", "100", "--ctx", "128"], "tokens, but --ctx gives 128."),
        (["--tokens", "3000", "--prefill", "none"], "decode at depth 0 needs a context of 3002"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("samovar: ")
    assert err.count("\n") == 1
    assert part in err
