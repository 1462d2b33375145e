#ifndef TFEMBED_CORE_TESTING_HUGE_PAGE_USE_H_
#define TFEMBED_CORE_TESTING_HUGE_PAGE_USE_H_

#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "cc/core/support/memory_block.h"

namespace tfembed {

// KiB of this process that are on huge pages.
inline int64_t HugePageKib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "AnonHugePages:") continue;
    int64_t kib = 0;
    file >> kib;
    return kib;
  }
  return 0;
}

// KiB of this process that asked for huge pages: whether the system has some
// left, at this moment, is another matter. 0 where it has none at all.
inline int64_t HugePageAskedKib() {
  std::ifstream file("/proc/self/smaps");
  int64_t asked = 0, kib = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Size:") words >> kib;
    if (word != "VmFlags:") continue;
    while (words >> word) {
      if (word == "hg") asked += kib;
    }
  }
  return asked;
}

// Returns whether the system has huge pages, for which memory can ask.
inline bool HasHugePages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
}

// Whether this system can move memory in use to huge pages, and may: found out
// without what is to be tested.
inline bool CanCollapse() {
  constexpr int kCollapse = 25;
  constexpr size_t kBytes = 2 * kHugePageBytes;
  void* const probe = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(probe);
  char* const page =
      static_cast<char*>(probe) + (kHugePageBytes - begin % kHugePageBytes);
  *page = 1;
  const bool can = madvise(page, kHugePageBytes, kCollapse) == 0;
  munmap(probe, kBytes);
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return can && std::getline(file, line) &&
         line.find("[never]") == std::string::npos;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_HUGE_PAGE_USE_H_
