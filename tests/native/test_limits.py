"""The limits of the machine: rates that are numbers, and what is refused."""

from __future__ import annotations

import pytest

from samovar import _native as native

MIB = 1 << 20


@pytest.mark.parametrize("table", native.available())
@pytest.mark.parametrize("type", ["f32", "q8", "bf16"])
def test_every_table_multiplies_every_type_of_rows(table: str, type: str) -> None:
    limits = native.Limits(native.Pool(1), native.Kernels(table), buffer_bytes=MIB)
    assert limits.macs_per_s(type, seconds=1e-4) > 1e6


@pytest.mark.parametrize("table", native.available())
def test_every_table_scales_the_sums_of_its_products(table: str) -> None:
    limits = native.Limits(native.Pool(1), native.Kernels(table), buffer_bytes=MIB)
    assert limits.scaled_macs_per_s(seconds=1e-4) > 1e6


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("nbytes", [100_000, MIB])
def test_threads_read_together(threads: int, nbytes: int) -> None:
    limits = native.Limits(native.Pool(threads), native.Kernels(), buffer_bytes=MIB)
    assert limits.read_bytes_per_s(nbytes=nbytes, seconds=1e-4) > 1e6


def test_what_is_out_of_range_is_refused() -> None:
    pool, kernels = native.Pool(1), native.Kernels()
    with pytest.raises(ValueError, match="buffer_bytes"):
        native.Limits(pool, kernels, buffer_bytes=MIB - 1)
    limits = native.Limits(pool, kernels, buffer_bytes=MIB)
    with pytest.raises(ValueError, match="bytes: expected 2048 to 1048576, got 1048577"):
        limits.read_bytes_per_s(nbytes=MIB + 1, seconds=1e-4)
    with pytest.raises(ValueError, match="got 2047"):
        limits.read_bytes_per_s(nbytes=2047, seconds=1e-4)
    with pytest.raises(ValueError, match="seconds"):
        limits.read_bytes_per_s(nbytes=MIB, seconds=0)
    with pytest.raises(ValueError, match="seconds"):
        limits.scaled_macs_per_s(seconds=61)
    with pytest.raises(ValueError, match="type: expected f32, q8 or bf16, got int8"):
        limits.macs_per_s("int8", seconds=1e-4)
