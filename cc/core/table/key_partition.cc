#include "cc/core/table/key_partition.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

// Keys are counted and dealt in few tasks: each writes lines of its own for
// each stripe, and lines that two threads write to go from one to the other.
// Two a thread, so that a thread that is late finds less to do.
constexpr int64_t kTasksPerThread = 2;
constexpr int64_t kLeastKeys = 4096;  // For each task.

constexpr int64_t kMostSpared = int64_t{1} << 20;  // Words a thread keeps.

using Counts = std::array<int64_t, kNumStripes>;

absl::Status NoMemory(int64_t keys) {
  return absl::ResourceExhaustedError(
      absl::StrCat("No memory to sort a batch of ", keys, " keys. Split it."));
}

}  // namespace

KeyPartition::Words& KeyPartition::Spare() {
  static thread_local Words spare;
  return spare;
}

KeyPartition::~KeyPartition() {
  if (memory_.data == nullptr || memory_.size > kMostSpared) return;
  if (memory_.size > Spare().size) Spare() = std::move(memory_);
}

bool KeyPartition::Allocate(int64_t n) {
  const int64_t words = n + n / 2 + 1;  // Positions are half a word.
  memory_ = std::exchange(Spare(), Words());
  if (memory_.size < words) {
    memory_.size = words;
    memory_.data.reset(new (std::nothrow) int64_t[words]);
  }
  keys_ = memory_.data.get();
  positions_ = reinterpret_cast<uint32_t*>(keys_ + n);
  return keys_ != nullptr;
}

KeyGroup KeyPartition::group(int stripe, const BatchPart& part) const {
  const KeyGroup all = group(stripe);
  if (part.size() == size()) return all;
  const uint32_t* const end = all.positions + all.size;
  const auto* const from = std::lower_bound(all.positions, end, part.begin);
  const auto* const to = std::lower_bound(from, end, part.end);
  const int64_t first = from - all.positions;
  return {all.keys + first, from, to - from};
}

std::bitset<kNumStripes> KeyPartition::stripes() const {
  std::bitset<kNumStripes> stripes;
  for (int s = 0; s < kNumStripes; ++s) {
    stripes[s] = begins_[s] < begins_[s + 1];
  }
  return stripes;
}

absl::StatusOr<KeyPartition> KeyPartition::Create(
    absl::Span<const int64_t> keys, Executor* executor) {
  const int64_t n = keys.size();
  if (n > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A batch has at most 2^32 - 1 keys; got ", n, ". Split it."));
  }
  KeyPartition partition;
  if (!partition.Allocate(n)) {
    return NoMemory(n);
  }
  const int64_t chunk_size =
      std::max(kLeastKeys, n / (kTasksPerThread * NumThreads(executor)) + 1);
  const int64_t num_chunks = (n + chunk_size - 1) / chunk_size;
  // By chunk: first counts, then places to fill.
  const std::unique_ptr<Counts[]> places(new (std::nothrow) Counts[num_chunks]);
  if (places == nullptr) return NoMemory(n);
  ParallelFor(executor, num_chunks, [&](int64_t chunk) {
    Counts counts = {};
    const int64_t end = std::min(n, (chunk + 1) * chunk_size);
    for (int64_t i = chunk * chunk_size; i < end; ++i) {
      ++counts[StripeOf(HashKey(keys[i]))];
    }
    places[chunk] = counts;
  });
  int64_t place = 0;
  for (int stripe = 0; stripe < kNumStripes; ++stripe) {
    partition.begins_[stripe] = place;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t count = places[chunk][stripe];
      places[chunk][stripe] = place;
      place += count;
    }
  }
  partition.begins_[kNumStripes] = place;
  ParallelFor(executor, num_chunks, [&](int64_t chunk) {
    Counts next = places[chunk];
    const int64_t end = std::min(n, (chunk + 1) * chunk_size);
    for (int64_t i = chunk * chunk_size; i < end; ++i) {
      const int64_t to = next[StripeOf(HashKey(keys[i]))]++;
      partition.keys_[to] = keys[i];
      partition.positions_[to] = static_cast<uint32_t>(i);
    }
  });
  return partition;
}

}  // namespace tfembed
