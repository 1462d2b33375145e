#ifndef TFEMBED_CORE_SUPPORT_GUARD_MEMORY_H_
#define TFEMBED_CORE_SUPPORT_GUARD_MEMORY_H_

#include <new>

#include "absl/status/status.h"

namespace tfembed {

// ResourceExhausted, without words: they would take memory.
inline absl::Status MemoryRefused() {
  return absl::Status(absl::StatusCode::kResourceExhausted, "");
}

// Returns what `work` returns, or what `refused` does where the system refuses
// memory to `work`. TensorFlow catches nothing: what its threads call of ours
// goes through here, or would end the process.
template <class Work, class Refused>
auto GuardMemory(const Work& work, const Refused& refused) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return refused();
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_GUARD_MEMORY_H_
