#include "cc/core/support/huge_pages.h"

#include <sys/mman.h>

#include <fstream>
#include <string>

namespace tfembed {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // In Linux 6.1; older headers lack the name.
#endif

}  // namespace

bool HugePagesAreAllowed() {
  static const bool are_allowed = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string line;
    return std::getline(file, line) &&
           line.find("[never]") == std::string::npos;
  }();
  return are_allowed;
}

void MoveToHugePages(char* begin, size_t bytes) {
  // MADV_COLLAPSE does not ask whether an administrator turned them off.
  if (HugePagesAreAllowed()) (void)madvise(begin, bytes, kCollapse);
}

}  // namespace tfembed
