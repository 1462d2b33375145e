#ifndef TFEMBED_CORE_TESTING_LINE_START_H_
#define TFEMBED_CORE_TESTING_LINE_START_H_

#include <cstdint>
#include <vector>

namespace tfembed {

// The spare floats of a vector of which some float shall begin a cache line.
inline constexpr int64_t kSpareFloats = 15;

// The first float of the vector that begins a cache line.
inline float* LineStart(std::vector<float>* memory) {
  const uintptr_t word =
      reinterpret_cast<uintptr_t>(memory->data()) / sizeof(float);
  return memory->data() + (-word & kSpareFloats);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_LINE_START_H_
