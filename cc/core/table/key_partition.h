#ifndef TFEMBED_CORE_TABLE_KEY_PARTITION_H_
#define TFEMBED_CORE_TABLE_KEY_PARTITION_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/core/support/hash.h"

namespace tfembed {

// The keys of a batch that belong to one stripe, in the order of the batch, and
// their positions in the batch.
struct KeyGroup {
  const int64_t* keys = nullptr;
  const uint32_t* positions = nullptr;
  int64_t size = 0;
};

// Positions [begin, end) of a batch.
struct BatchPart {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// A batch of keys, grouped by stripe by a counting sort. Movable, immutable.
class KeyPartition {
 public:
  // ResourceExhausted; InvalidArgument for 2^32 keys or more.
  static absl::StatusOr<KeyPartition> Create(absl::Span<const int64_t> keys,
                                             Executor* executor);

  KeyPartition(KeyPartition&&) = default;
  KeyPartition& operator=(KeyPartition&&) = default;
  ~KeyPartition();

  int64_t size() const { return begins_[kNumStripes]; }

  // The number of keys in the groups before this stripe's.
  int64_t begin(int stripe) const { return begins_[stripe]; }

  KeyGroup group(int stripe) const {
    const int64_t begin = begins_[stripe];
    return {keys_ + begin, positions_ + begin, begins_[stripe + 1] - begin};
  }

  // The same of a part of the batch.
  KeyGroup group(int stripe, const BatchPart& part) const;

  // The stripes that have keys.
  std::bitset<kNumStripes> stripes() const;

 private:
  struct Words {
    std::unique_ptr<int64_t[]> data;
    int64_t size = 0;
  };

  KeyPartition() = default;

  // The memory of this thread's last partition, for the next one: fresh pages
  // cost a narrow batch more than the sort does.
  static Words& Spare();

  // Room for n keys; false where there is no memory.
  bool Allocate(int64_t n);

  Words memory_;
  int64_t* keys_ = nullptr;
  uint32_t* positions_ = nullptr;
  std::array<int64_t, kNumStripes + 1> begins_ = {};
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_KEY_PARTITION_H_
