#include "cc/core/policies/count_admission.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "cc/core/table/hash_index.h"

namespace tfembed {
namespace {

constexpr float kMaxSeen = 1 << 24;  // Whole numbers of a float.

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

}  // namespace

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeCountAdmission(
    RuleText text) {
  float seen = 0;
  text.Read("seen", &seen);
  text.Require(seen >= 1 && seen <= kMaxSeen && seen == std::floor(seen),
               "seen", "a whole number from 1 to 2^24");
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<CountAdmission>(static_cast<uint32_t>(seen));
}

}  // namespace tfembed
