"""Installs the programs that Samovar is compared with, outside of the checkout.

    python benchmarks/peers/install.py [--home DIRECTORY] [--jobs 2] [llama.cpp] [openvino]

llama.cpp is built from the sources inside the llama-cpp-python source package, for this very
processor and with AMX.  GCC 12 needs two flags: `_tile_loadconfig` of its headers declares only a
part of its operand as read, so the stores that fill it are dropped as dead, and llama.cpp dies
with an illegal instruction at its first batch.  Clang 14 leaves AMX off, which is no fair peer.
OpenVINO GenAI gets a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from place import bench_home, llama_cpp_bin, openvino_python

LLAMA_CPP_PYTHON = "llama-cpp-python==0.3.36"
LLAMA_CPP_COMMIT = "0c1e57098"  # what that package holds, by its changelog
OPENVINO = ("openvino-genai==2026.4.1.0", "gguf==0.19.0")
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server")
KEEP_STORES = "-fno-tree-dse -fno-dse"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", choices=["llama.cpp", "openvino", []], default=[])
    parser.add_argument("--home", type=Path, default=bench_home())
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    home: Path = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    if not args.peers or "llama.cpp" in args.peers:
        install_llama_cpp(home, args.jobs)
    if not args.peers or "openvino" in args.peers:
        install_openvino(home)


def install_llama_cpp(home: Path, jobs: int) -> None:
    """Downloads, unpacks and builds what is not there yet; a broken build is taken up again."""
    root = home / "llama.cpp"
    if not (root / "source").exists():
        with tempfile.TemporaryDirectory(dir=home) as folder:
            download = [sys.executable, "-m", "pip", "download", "--no-deps"]
            only_source = ["--no-binary", "llama-cpp-python"]  # what builds it may be wheels
            run([*download, *only_source, LLAMA_CPP_PYTHON, "--dest", folder])
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as sources:
                sources.extractall(folder, filter="data")
            (vendored,) = Path(folder).glob("*/vendor/llama.cpp")
            root.mkdir(exist_ok=True)
            shutil.move(vendored, root / "source")
    build = root / "build"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_C_COMPILER=gcc",
        "-DCMAKE_CXX_COMPILER=g++",
        f"-DCMAKE_CXX_FLAGS={KEEP_STORES}",
        f"-DLLAMA_BUILD_COMMIT={LLAMA_CPP_COMMIT}",
        "-DGGML_NATIVE=ON",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
    ]
    run(["cmake", *generator, "-S", str(root / "source"), "-B", str(build), *options])
    run(["cmake", "--build", str(build), "-j", str(jobs), "--target", *TARGETS])
    missing = [name for name in TARGETS if not (llama_cpp_bin(home) / name).exists()]
    if missing:
        sys.exit(f"llama.cpp was built without {', '.join(missing)}")
    print(f"llama.cpp is in {llama_cpp_bin(home)}")


def install_openvino(home: Path) -> None:
    python = openvino_python(home)
    if not python.exists():
        run([sys.executable, "-m", "venv", str(home / "openvino")])
    run([str(python), "-m", "pip", "install", "--quiet", *OPENVINO])
    print(f"OpenVINO GenAI is in {python.parent.parent}")


def run(command: list[str]) -> None:
    print(" ".join(command), flush=True)
    if (result := subprocess.run(command, check=False)).returncode:
        sys.exit(f"{command[0]} failed with status {result.returncode}")


if __name__ == "__main__":
    main()
