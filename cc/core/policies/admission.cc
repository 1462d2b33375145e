#include "cc/core/policies/admission.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/support/rule_text.h"
#include "cc/core/table/hash_index.h"

namespace tfembed {
namespace {

// "count": a counter for each key that waits.

constexpr float kMaxCount = 1 << 24;  // Whole numbers of a float.

class CountFilter final : public AdmissionFilter {
 public:
  CountFilter(uint32_t seen, std::shared_ptr<ChunkPool> pool) : seen_(seen) {
    counts_.set_pool(std::move(pool));
  }

  absl::Status Reserve(int64_t keys) override {
    absl::Status status = counts_.Reserve(counts_.size() + reserved_ + keys);
    if (status.ok()) reserved_ += keys;
    return status;
  }
  void Release(int64_t keys) override { reserved_ -= keys; }

  bool Admit(uint64_t hash, int64_t key) override {
    const uint32_t before = counts_.Erase(hash, key);
    const uint32_t count = before == HashIndex::kNoRow ? 1 : before + 1;
    if (count >= seen_) return true;
    // A key that was in the table when room was kept may have gone since: there
    // may be none, and it is not counted this once.
    if (counts_.size() < counts_.capacity()) counts_.Insert(hash, key, count);
    return false;
  }

  void Forget(uint64_t hash, int64_t key) override { counts_.Erase(hash, key); }

  bool WouldAdmit(uint64_t hash, int64_t key) const override {
    const uint32_t before = counts_.Find(hash, key);
    return (before == HashIndex::kNoRow ? 1 : before + 1) >= seen_;
  }

  int64_t num_waiting() const override { return counts_.size(); }
  bool IsWaiting(uint64_t hash, int64_t key) const override {
    return counts_.Find(hash, key) != HashIndex::kNoRow;
  }
  void ForEachWaiting(const WaitingVisitor& visit) const override {
    counts_.ForEach(0, counts_.num_buckets(), [&](int64_t key, uint32_t count) {
      visit(key, static_cast<int32_t>(count));
    });
  }
  void Wait(uint64_t hash, int64_t key, int32_t seen) override {
    const uint32_t before = counts_.Erase(hash, key);
    auto count = static_cast<uint32_t>(seen);
    if (before != HashIndex::kNoRow) count = std::max(count, before);
    counts_.Insert(hash, key, count);
  }

  void Clear() override { counts_.Clear(); }
  int64_t bytes() const override { return counts_.bytes(); }

 private:
  const uint32_t seen_;
  HashIndex counts_;      // Counts in place of rows.
  int64_t reserved_ = 0;  // Keys.
};

class CountAdmission final : public AdmissionPolicy {
 public:
  explicit CountAdmission(uint32_t seen) : seen_(seen) {}

  bool is_exact() const override { return true; }

  absl::StatusOr<std::unique_ptr<AdmissionFilter>> NewFilter(
      int num_stripes) const override {
    return std::make_unique<CountFilter>(seen_, pool_);
  }

 private:
  const uint32_t seen_;
  const std::shared_ptr<ChunkPool> pool_ = std::make_shared<ChunkPool>();
};

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeCountAdmission(
    RuleText text) {
  float seen = 0;
  text.Read("seen", &seen);
  text.Require(seen >= 1 && seen <= kMaxCount && seen == std::floor(seen),
               "seen", "a whole number from 1 to 2^24");
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<CountAdmission>(static_cast<uint32_t>(seen));
}

// "bloom": a counting Bloom filter with conservative update: a key raises only
// those of its counters that are the lowest.

constexpr int kMaxSeen = 255;  // Counters are bytes.
constexpr int kMaxHashes = 32;
constexpr float kMaxCapacity = 1e11f;

struct BloomShape {
  int seen = 0;
  uint64_t counters = 0;
  int hashes = 0;
};

class BloomFilter final : public AdmissionFilter {
 public:
  BloomFilter(const BloomShape& shape, MemoryBlock counters)
      : shape_(shape), memory_(std::move(counters)) {}

  absl::Status Reserve(int64_t keys) override { return absl::OkStatus(); }
  void Release(int64_t keys) override {}

  bool Admit(uint64_t hash, int64_t key) override {
    uint8_t* counters[kMaxHashes];
    const int count = std::min(Count(hash, counters) + 1, kMaxSeen);
    for (int i = 0; i < shape_.hashes; ++i) {
      *counters[i] = std::max<uint8_t>(*counters[i], count);
    }
    return count >= shape_.seen;
  }

  // Its counters are those of other keys, too.
  void Forget(uint64_t hash, int64_t key) override {}

  bool WouldAdmit(uint64_t hash, int64_t key) const override {
    uint8_t* counters[kMaxHashes];
    return Count(hash, counters) + 1 >= shape_.seen;
  }

  int64_t num_waiting() const override { return 0; }
  bool IsWaiting(uint64_t hash, int64_t key) const override { return false; }
  void ForEachWaiting(const WaitingVisitor& visit) const override {}
  void Wait(uint64_t hash, int64_t key, int32_t seen) override {
    uint8_t* counters[kMaxHashes];
    Count(hash, counters);
    for (int i = 0; i < shape_.hashes; ++i) {
      *counters[i] = static_cast<uint8_t>(
          std::clamp<int32_t>(seen, *counters[i], kMaxSeen));
    }
  }

  absl::Span<uint8_t> shared_counters() override {
    return {reinterpret_cast<uint8_t*>(memory_.data()), shape_.counters};
  }
  absl::Span<const uint8_t> shared_counters() const override {
    return {reinterpret_cast<const uint8_t*>(memory_.data()), shape_.counters};
  }

  // In new memory, of which nothing is written: zeros would all be.
  void Clear() override {
    auto memory = MemoryBlock::Allocate(memory_.size());
    if (memory.ok()) {
      memory_ = *std::move(memory);
    } else {
      std::memset(memory_.data(), 0, memory_.size());
    }
  }
  int64_t bytes() const override { return memory_.size(); }

 private:
  // Finds a key's counters; returns the lowest.
  int Count(uint64_t hash, uint8_t** counters) const {
    // Places begin and step by hashes that do not depend on the stripe's.
    uint64_t place = MixBits(hash + 0x9e3779b97f4a7c15ULL);
    const uint64_t step = MixBits(place) | 1;
    int count = kMaxSeen;
    for (int i = 0; i < shape_.hashes; ++i, place += step) {
      counters[i] = Counter(place);
      count = std::min<int>(count, *counters[i]);
    }
    return count;
  }

  uint8_t* Counter(uint64_t place) const {
    const unsigned __int128 scaled =
        static_cast<unsigned __int128>(place) * shape_.counters;
    return reinterpret_cast<uint8_t*>(memory_.data()) +
           static_cast<uint64_t>(scaled >> 64);
  }

  const BloomShape shape_;
  MemoryBlock memory_;
};

class BloomAdmission final : public AdmissionPolicy {
 public:
  BloomAdmission(int seen, double capacity, double error_rate)
      : seen_(seen), capacity_(capacity), error_rate_(error_rate) {}

  bool is_exact() const override { return false; }
  std::string counters_kind() const override {
    return absl::StrCat("bloom_", NumHashes());
  }

  absl::StatusOr<std::unique_ptr<AdmissionFilter>> NewFilter(
      int num_stripes) const override {
    // Stripes differ by chance; four standard deviations cover them all.
    const double mean = capacity_ / num_stripes;
    const double keys = mean + 4 * std::sqrt(mean) + 1;
    const double per_key = -std::log2(error_rate_) / std::log(2.0);
    BloomShape shape;
    shape.seen = seen_;
    shape.counters = static_cast<uint64_t>(std::ceil(keys * per_key));
    shape.hashes = NumHashes();
    // Ask for all stripes: memory counts as free until it is written.
    const absl::Status there = CheckMemory(shape.counters * num_stripes);
    if (!there.ok()) return there;
    absl::StatusOr<MemoryBlock> counters =
        MemoryBlock::Allocate(shape.counters);
    if (!counters.ok()) return counters.status();
    return std::make_unique<BloomFilter>(shape, *std::move(counters));
  }

 private:
  int NumHashes() const {
    const auto hashes = static_cast<int>(std::lround(-std::log2(error_rate_)));
    return std::clamp(hashes, 1, kMaxHashes);
  }

  const int seen_;
  const double capacity_;
  const double error_rate_;
};

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeBloomAdmission(
    RuleText text) {
  float seen = 0, capacity = 0, error_rate = 0.01f;
  text.Read("seen", &seen);
  text.Require(seen >= 1 && seen <= kMaxSeen && seen == std::floor(seen),
               "seen", "a whole number from 1 to 255");
  text.Read("capacity", &capacity);
  text.Require(capacity >= 1 && capacity <= kMaxCapacity, "capacity",
               "from 1 to 1e11");
  text.Read("error_rate", &error_rate);
  text.Require(error_rate >= 1e-6f && error_rate <= 0.5f, "error_rate",
               "from 1e-6 to 0.5");
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<BloomAdmission>(static_cast<int>(seen), capacity,
                                          error_rate);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> AdmissionPolicy::Parse(
    absl::string_view text) {
  absl::StatusOr<RuleText> parsed = RuleText::Parse(text);
  if (!parsed.ok()) return parsed.status();
  if (parsed->name() == "count") return MakeCountAdmission(*std::move(parsed));
  if (parsed->name() == "bloom") return MakeBloomAdmission(*std::move(parsed));
  return absl::InvalidArgumentError(
      absl::StrCat("Unknown admission policy `", parsed->name(),
                   "`; the policies are bloom and count."));
}

}  // namespace tfembed
