// What this machine offers: instruction sets, cores, memory; and the floating-point mode of a thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace samovar {

// Instruction sets that both the CPU and the operating system's saved state allow.
struct CpuFeatures {
  bool f16c = false;
  bool fma = false;
  bool avx2 = false;
  bool avx_vnni = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_int8 = false; // the unit exists; its use must still be asked of the kernel
  bool amx_bf16 = false;
  bool dotprod = false;
  bool i8mm = false;

  bool amd = false; // who made it

  // Each feature of this processor's architecture with its name in /proc/cpuinfo's spelling.
  std::vector<std::pair<const char*, bool>> named() const;
};
CpuFeatures detect_cpu();

// Asks the operating system, once, to let this process use AMX tiles; false if it does not.
bool allow_amx();

// Threads worth running: min(affinity, floor(cgroup quota), physical cores), at least 1.
// `root` is put before every path of /proc and /sys (tests only).
int usable_cores(const std::string& root = "");

// Bytes that can still be allocated: min(MemAvailable, what each cgroup along the path allows).
int64_t available_memory(const std::string& root = "");

// While it lives, this thread flushes denormal results to zero and reads denormals as zero.
class FlushDenormals {
public:
  FlushDenormals() : saved_(read()) { write(saved_ | kFlush); }
  ~FlushDenormals() { write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040; // MXCSR: FTZ and DAZ
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24; // FPCR.FZ
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
#error "Samovar runs on x86-64 and aarch64"
#endif
  uint64_t saved_;
};

} // namespace samovar
