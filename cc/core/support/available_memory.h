#ifndef TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_
#define TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace tfembed {

// Bytes that this process may still use without swapping or being killed: what
// the system has and what the control groups of a container leave, the least of
// them. INT64_MAX where nothing is told. It reads some small files, about as
// long as 64 KiB of new memory take. `root`: where the system's folders are,
// for tests.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_
