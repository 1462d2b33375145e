#ifndef TFEMBED_CORE_SUPPORT_KNOWN_BYTES_H_
#define TFEMBED_CORE_SUPPORT_KNOWN_BYTES_H_

#include <cstdint>
#include <type_traits>

namespace tfembed {

// run(std::integral_constant<int64_t, bytes>) for rows of common sizes, else
// with 0, for which the size is to be looked up. Loops of a known length take
// fewer instructions, and the fewer there are the more keys a processor has
// under way at once.
template <typename Run>
inline void WithKnownBytes(int64_t bytes, Run run) {
  switch (bytes) {
    case 32:
      return run(std::integral_constant<int64_t, 32>());
    case 64:
      return run(std::integral_constant<int64_t, 64>());
    case 128:
      return run(std::integral_constant<int64_t, 128>());
    case 256:
      return run(std::integral_constant<int64_t, 256>());
    default:
      return run(std::integral_constant<int64_t, 0>());
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_KNOWN_BYTES_H_
