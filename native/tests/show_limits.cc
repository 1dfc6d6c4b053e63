// Prints the cores and the memory that a process may use; an argument is put before /proc and /sys.
#include "../cpu.h"

#include <cstdio>

int main(int argc, char** argv) {
  const char* root = argc > 1 ? argv[1] : "";
  std::printf("%d %lld\n", samovar::usable_cores(root),
              static_cast<long long>(samovar::available_memory(root)));
}
