"""Test programs compiled here: the exact fused multiply-add, the limits of /proc and /sys."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(not NATIVE.is_dir(), reason="not a checkout"),
]


def compile_program(output: Path, *sources: str) -> Path:
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
    command = [str(COMPILER), *flags, *(str(NATIVE / s) for s in sources), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def test_fma_of_the_portable_table_rounds_once(tmp_path: Path) -> None:
    program = compile_program(tmp_path / "check_fma", "tests/check_fma.cc")
    with (NATIVE / "tests/fma_vectors.txt").open() as vectors:
        done = subprocess.run([program], stdin=vectors, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def show_limits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("limits") / "show_limits"
    return compile_program(output, "tests/show_limits.cc", "cpu.cc")


def limits(program: Path, root: Path, files: dict[str, str]) -> tuple[int, int]:
    """Cores and bytes that the program sees with these files under its root."""
    cpus = sorted(os.sched_getaffinity(0))
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in cpus
    }
    meminfo = "MemTotal: 16000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **topology, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = subprocess.run([program, root], check=True, capture_output=True, text=True).stdout
    cores, memory = out.split()
    return int(cores), int(memory)


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_without_cgroups_the_machine_is_the_limit(show_limits: Path, tmp_path: Path) -> None:
    assert limits(show_limits, tmp_path, {}) == (len(os.sched_getaffinity(0)), 8000 * 1024)


def test_hyperthreads_of_one_core_count_once(show_limits: Path, tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    siblings = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": "0-63\n" for cpu in cpus
    }
    assert limits(show_limits, tmp_path, siblings)[0] == 1


def test_v2_limits_of_every_level_count(show_limits: Path, tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "190000 100000\n",
        "sys/fs/cgroup/a/b/memory.max": "5000000\n",
        "sys/fs/cgroup/a/b/memory.current": "1000000\n",
        "sys/fs/cgroup/a/memory.max": "4000000\n",
        "sys/fs/cgroup/a/memory.current": "2000000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500000\n",
    }
    assert limits(show_limits, tmp_path, files) == (1, 2500000)


def test_v1_limits_of_a_container(show_limits: Path, tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/job\n0::/elsewhere\n",
        "proc/self/mountinfo": V1,
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000\n",
    }
    assert limits(show_limits, tmp_path, files) == (1, 0)


def test_a_mount_of_a_part_of_the_hierarchy(show_limits: Path, tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/docker/1\n",
        "proc/self/mountinfo": V2.replace(" / /sys", " /docker/1 /sys"),
        "sys/fs/cgroup/memory.max": "7000\n",
        "sys/fs/cgroup/memory.current": "3000\n",
    }
    assert limits(show_limits, tmp_path, files)[1] == 4000
