#include "cpu.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace samovar {

#if defined(__x86_64__)

CpuFeatures detect_cpu() {
  CpuFeatures f;
  unsigned a, b, c, d;
  f.amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx &&
          d == signature_AMD_edx;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
    return f;
  unsigned lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  const bool ymm = (lo & 0x6) == 0x6;          // SSE and AVX state
  const bool zmm = ymm && (lo & 0xe0) == 0xe0; // opmask, upper halves, upper registers
  const bool tiles = (lo & 0x60000) == 0x60000;
  f.f16c = ymm && (c & bit_F16C);
  f.fma = ymm && (c & bit_FMA);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
    return f;
  const unsigned max_subleaf = a;
  f.avx2 = ymm && (b >> 5 & 1);
  f.avx512f = zmm && (b >> 16 & 1);
  f.avx512dq = zmm && (b >> 17 & 1);
  f.avx512bw = zmm && (b >> 30 & 1);
  f.avx512vl = zmm && (b >> 31 & 1);
  f.avx512_vnni = zmm && (c >> 11 & 1);
  f.amx_bf16 = tiles && (d >> 22 & 1);
  f.amx_int8 = tiles && (d >> 25 & 1);
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = ymm && (a >> 4 & 1);
    f.avx512_bf16 = zmm && (a >> 5 & 1);
  }
  return f;
}

bool allow_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
}

std::vector<std::pair<const char*, bool>> CpuFeatures::named() const {
  return {{"f16c", f16c},
          {"fma", fma},
          {"avx2", avx2},
          {"avx_vnni", avx_vnni},
          {"avx512f", avx512f},
          {"avx512bw", avx512bw},
          {"avx512vl", avx512vl},
          {"avx512dq", avx512dq},
          {"avx512_vnni", avx512_vnni},
          {"avx512_bf16", avx512_bf16},
          {"amx_int8", amx_int8},
          {"amx_bf16", amx_bf16}};
}

#elif defined(__aarch64__)

CpuFeatures detect_cpu() {
  CpuFeatures f;
  f.dotprod = getauxval(AT_HWCAP) >> 20 & 1; // HWCAP_ASIMDDP
  f.i8mm = getauxval(AT_HWCAP2) >> 13 & 1;   // HWCAP2_I8MM
  return f;
}

bool allow_amx() {
  return false;
}

std::vector<std::pair<const char*, bool>> CpuFeatures::named() const {
  return {{"asimddp", dotprod}, {"i8mm", i8mm}};
}

#endif

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t number_in(const std::string& path, int64_t otherwise) {
  std::istringstream line(first_line(path));
  int64_t value;
  return line >> value ? value : otherwise;
}

// The value that follows `key` at the start of a line, as in /proc/meminfo and memory.stat.
int64_t value_of(const std::string& path, const std::string& key, int64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  int64_t value;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> word && word == key && words >> value)
      return value;
  }
  return otherwise;
}

bool has_item(const std::string& list, const std::string& item) {
  return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

// The directories from this process's cgroup up to the hierarchy's mount point, leaf first, for one
// controller; `version` says which hierarchy.  Empty if it is not mounted.
std::vector<std::string> cgroup_path(const std::string& root, const std::string& controller, int version) {
  std::string group;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) { // id:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos)
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version == 2 ? controllers.empty() : has_item(controllers, controller))
      group = line.substr(second + 1);
  }
  if (group.empty())
    return {};

  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // id parent device root mountpoint options [tags] - type source super-options
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos)
      continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string skip, mount_root, mount_point, type, source, options;
    head >> skip >> skip >> skip >> mount_root >> mount_point;
    tail >> type >> source >> options;
    if (version == 2 ? type != "cgroup2" : type != "cgroup" || !has_item(options, controller))
      continue;
    // A container's mount may show only a part of the hierarchy, or a path of the host that is not in it.
    if (mount_root != "/") {
      if (group.rfind(mount_root, 0) == 0)
        group = group.substr(mount_root.size());
      else
        group.clear();
    }
    std::vector<std::string> path;
    while (!group.empty() && group != "/") {
      path.push_back(root + mount_point + group);
      group = group.substr(0, group.rfind('/'));
    }
    path.push_back(root + mount_point);
    return path;
  }
  return {};
}

// Whole cores that the CPU quotas along the path allow; at least 1.
int64_t quota_cores(const std::string& root) {
  int64_t cores = kNoLimit;
  const auto limit = [&](int64_t quota, int64_t period) {
    if (quota > 0 && period > 0)
      cores = std::min(cores, std::max<int64_t>(1, quota / period));
  };
  for (const std::string& dir : cgroup_path(root, "cpu", 2)) {
    std::istringstream line(first_line(dir + "/cpu.max")); // "max 100000" or "150000 100000"
    int64_t quota, period;
    if (line >> quota >> period)
      limit(quota, period);
  }
  for (const std::string& dir : cgroup_path(root, "cpu", 1))
    limit(number_in(dir + "/cpu.cfs_quota_us", -1), number_in(dir + "/cpu.cfs_period_us", -1));
  return cores;
}

std::vector<int> allowed_cpus() {
  for (int size = 1024; size <= 1 << 16; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (!set)
      break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, set) == 0)
      for (int cpu = 0; cpu < size; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, set))
          cpus.push_back(cpu);
    CPU_FREE(set);
    if (!cpus.empty())
      return cpus;
  }
  return {0};
}

} // namespace

int usable_cores(const std::string& root) {
  const std::vector<int> cpus = allowed_cpus();
  std::set<std::string> cores; // the hyperthreads of one core name the same siblings
  for (int cpu : cpus) {
    const std::string name = std::to_string(cpu);
    const std::string siblings =
        first_line(root + "/sys/devices/system/cpu/cpu" + name + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  return static_cast<int>(std::min<int64_t>(cores.size(), quota_cores(root)));
}

int64_t available_memory(const std::string& root) {
  const int64_t kib = value_of(root + "/proc/meminfo", "MemAvailable:", -1);
  int64_t available =
      kib >= 0 ? kib * 1024 : static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const auto limit = [&](const std::string& dir, int64_t most, int64_t used) {
    if (most < 0 || used < 0)
      return;
    // The page cache of files not in use counts as used, but the kernel gives it back when asked.
    const int64_t cache = value_of(dir + "/memory.stat", "inactive_file", 0);
    available = std::min(available, std::max<int64_t>(0, most - std::max<int64_t>(0, used - cache)));
  };
  for (const std::string& dir : cgroup_path(root, "memory", 2)) // "max" is no number: no limit
    limit(dir, number_in(dir + "/memory.max", -1), number_in(dir + "/memory.current", -1));
  for (const std::string& dir : cgroup_path(root, "memory", 1))
    limit(dir, number_in(dir + "/memory.limit_in_bytes", -1), number_in(dir + "/memory.usage_in_bytes", -1));
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    const int64_t used = value_of("/proc/self/status", "VmSize:", 0) * 1024;
    available = std::min(available, std::max<int64_t>(0, static_cast<int64_t>(space.rlim_cur) - used));
  }
  return available;
}

} // namespace samovar
