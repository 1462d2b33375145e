#ifndef TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_
#define TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tfembed {

// Bytes that this process may still use without swapping or being killed: what
// the system has and what the control group of a container leaves, the lesser
// of them. INT64_MAX where neither is told. `root`: where the system's folders
// are, for tests.
int64_t AvailableMemory(const std::string& root = "");

// ResourceExhausted where `bytes` more are not available. A system promises
// more memory than it has and kills who uses it, so ask before what would be
// missed; it reads some small files, about as long as 64 KiB of new memory
// take.
absl::Status CheckMemory(int64_t bytes);

// The same error of a request that a system refused by itself.
absl::Status NoMemory(uint64_t bytes);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_AVAILABLE_MEMORY_H_
