#ifndef TFEMBED_CORE_STRING_CELL_H_
#define TFEMBED_CORE_STRING_CELL_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/string_view.h"

namespace tfembed {

// memcmp(a, b, n) == 0 for the few bytes of a cell, where a call takes longer.
inline bool SameBytes(const char* a, const char* b, size_t n) {
  const auto differ = [a, b](size_t at, auto word_a) {
    auto word_b = word_a;
    std::memcpy(&word_a, a + at, sizeof(word_a));
    std::memcpy(&word_b, b + at, sizeof(word_b));
    return word_a != word_b;
  };
  if (n >= 16) {
    return !(differ(0, uint64_t{}) | differ(8, uint64_t{}) |
             differ(n - 8, uint64_t{}));
  }
  if (n >= 8) return !(differ(0, uint64_t{}) | differ(n - 8, uint64_t{}));
  return std::memcmp(a, b, n) == 0;
}

// A string where it is short, else its length and address.
struct StringCell {
  static constexpr int64_t kInlineBytes = 20;

  uint32_t length;
  char bytes[kInlineBytes];

  bool is_long() const { return length > kInlineBytes; }

  char* address() const {
    char* address;
    std::memcpy(&address, bytes, sizeof(address));
    return address;
  }
  absl::string_view text() const {
    return {is_long() ? address() : bytes, length};
  }
  bool Is(absl::string_view other) const {
    if (other.size() != length) return false;
    return is_long() ? text() == other : SameBytes(bytes, other.data(), length);
  }

  // False where there is no memory.
  bool Set(absl::string_view text) {
    length = static_cast<uint32_t>(text.size());
    if (!is_long()) {
      std::memcpy(bytes, text.data(), text.size());
      return true;
    }
    void* copy = std::malloc(text.size());
    if (copy == nullptr) return false;
    std::memcpy(copy, text.data(), text.size());
    std::memcpy(bytes, &copy, sizeof(copy));
    return true;
  }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STRING_CELL_H_
