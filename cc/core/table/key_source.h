#ifndef TFEMBED_CORE_TABLE_KEY_SOURCE_H_
#define TFEMBED_CORE_TABLE_KEY_SOURCE_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "cc/core/support/prefetch.h"

namespace tfembed {

// The keys of a batch, a block at a time: in memory, or computed for the block,
// as the keys of strings.
class KeySource {
 public:
  static constexpr int64_t kMostKeys = 128;  // In a block.

  virtual ~KeySource() = default;

  virtual int64_t size() const = 0;

  // Call it once, before any Block, with the table's locks held; it may lock
  // more, after them.
  virtual void Begin() {}

  // Keys [begin, begin + n), where they lie or in `buffer`. REQUIRES: n <=
  // kMostKeys. Thread-safe.
  virtual const int64_t* Block(int64_t begin, int64_t n,
                               int64_t* buffer) const = 0;
};

// Keys that lie in memory.
class KeySpan final : public KeySource {
 public:
  explicit KeySpan(absl::Span<const int64_t> keys) : keys_(keys) {}

  int64_t size() const override { return keys_.size(); }

  const int64_t* Block(int64_t begin, int64_t n,
                       int64_t* buffer) const override {
    // For the next block.
    PrefetchIds(keys_.data(), begin + n, std::min(begin + 2 * n, size()));
    return keys_.data() + begin;
  }

 private:
  const absl::Span<const int64_t> keys_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_KEY_SOURCE_H_
