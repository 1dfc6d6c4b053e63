#!/bin/sh
# Proves that all kernels give the same bits, on an x86-64 machine that need not have them all: the test program
# must print the same checksums for the tables that the machine can run, for AMX on emulated tiles where there are
# no others (but AVX-512 BF16), and cross-compiled for aarch64 under qemu.  Needs aarch64-linux-gnu-g++,
# qemu-aarch64, cmake.
set -eu
native=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d)}
build() { # directory, more options of cmake
  directory=$1
  shift
  cmake -S "$native" -B "$work/$directory" -DSAMOVAR_MODULE=OFF "$@" >"$work/$directory.log" 2>&1 &&
    cmake --build "$work/$directory" --target kernel_checksums --parallel 2 >>"$work/$directory.log" 2>&1 ||
    { cat "$work/$directory.log"; exit 1; }
}
emulated=ON
if grep -q amx_int8 /proc/cpuinfo; then emulated=OFF; fi
build host -DSAMOVAR_EMULATED_TILES=$emulated
build aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
"$work/host/kernel_checksums" >"$work/host.txt"
qemu-aarch64 "$work/aarch64/kernel_checksums" >"$work/aarch64.txt"
cut -d' ' -f1,2 "$work/host.txt" >"$work/host.sums"
cut -d' ' -f1,2 "$work/aarch64.txt" >"$work/aarch64.sums"
diff "$work/host.sums" "$work/aarch64.sums"
if grep -q avx512_bf16 /proc/cpuinfo && ! grep -q ' amx' "$work/host.txt"; then
  echo "the kernels of AMX did not run"
  exit 1
fi
for table in neon_i8mm neon_dotprod; do
  grep -q " $table" "$work/aarch64.txt" || { echo "the emulator does not run $table"; exit 1; }
done
echo "$(wc -l <"$work/host.sums") kernels agree: $(head -1 "$work/host.txt" | cut -d' ' -f3-) = $(head -1 "$work/aarch64.txt" | cut -d' ' -f3-)"
