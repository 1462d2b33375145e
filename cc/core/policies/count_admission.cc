#include "cc/core/policies/count_admission.h"

#include <cmath>

#include "cc/core/hash_index.h"

namespace tfembed {
namespace {

constexpr float kMaxSeen = 1 << 24;  // Whole numbers of a float.

class CountFilter final : public AdmissionFilter {
 public:
  explicit CountFilter(uint32_t seen) : seen_(seen) {}

  absl::Status Reserve(int64_t keys) override {
    return counts_.Reserve(counts_.size() + keys);
  }

  bool Admit(uint64_t hash, int64_t key) override {
    const uint32_t before = counts_.Erase(hash, key);
    const uint32_t count = before == HashIndex::kNoRow ? 1 : before + 1;
    if (count >= seen_) return true;
    counts_.Insert(hash, key, count);
    return false;
  }

  bool WouldAdmit(uint64_t hash, int64_t key) const override {
    const uint32_t before = counts_.Find(hash, key);
    return (before == HashIndex::kNoRow ? 1 : before + 1) >= seen_;
  }

  void Clear() override { counts_.Clear(); }
  int64_t bytes() const override { return counts_.bytes(); }

 private:
  const uint32_t seen_;
  HashIndex counts_;  // Counts in place of rows.
};

class CountAdmission final : public AdmissionPolicy {
 public:
  explicit CountAdmission(uint32_t seen) : seen_(seen) {}

  bool is_exact() const override { return true; }

  absl::StatusOr<std::unique_ptr<AdmissionFilter>> NewFilter(
      int num_stripes) const override {
    return std::make_unique<CountFilter>(seen_);
  }

 private:
  const uint32_t seen_;
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
