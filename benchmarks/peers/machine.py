"""What a measurement depends on besides the programs."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

STAT = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Flags of vector and matrix instructions; the others do not decide about speed here.
SPEED_FLAGS = ("avx", "amx", "f16c", "fma", "sve", "asimd", "i8mm", "bf16")


def machine() -> dict[str, Any]:
    """Processor, memory and kernel; what cannot be read is None."""
    info = dict(_fields(CPUINFO.read_text())) if CPUINFO.exists() else {}
    flags = info.get("flags", info.get("Features", "")).split()
    governor = _text(GOVERNOR)
    return {
        "cpu": info.get("model name", platform.processor()),
        "cpu_family_model_stepping": [info.get(key) for key in ("cpu family", "model", "stepping")],
        "cpus": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in flags if any(part in flag for part in SPEED_FLAGS)],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "governor": governor,
        "transparent_huge_pages": _text(HUGE_PAGES),
        "python": platform.python_version(),
    }


def busy(seconds: float = 1.0) -> float | None:
    """The share of all processors' time that others use while we wait; None if it is not told."""
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    if not before or not after:
        return None
    spent = [b - a for a, b in zip(before, after, strict=True)]
    idle = spent[3] + spent[4]  # waiting for a disk is idle too
    return 1 - idle / max(1, sum(spent))


def _cpu_times() -> list[int]:
    text = _text(STAT)
    return [int(part) for part in text.splitlines()[0].split()[1:9]] if text else []


def _fields(text: str) -> list[tuple[str, str]]:
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return [(key.strip(), value.strip()) for key, _, value in lines]


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
