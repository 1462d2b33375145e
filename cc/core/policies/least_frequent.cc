#include "cc/core/policies/least_frequent.h"

#include <algorithm>
#include <limits>

namespace tfembed {
namespace {

class LeastFrequent final : public EvictionPolicy {
 public:
  int meta_words() const override { return 1; }
  bool counts() const override { return true; }

  uint32_t Touch(uint32_t word, const Moment& now) const override {
    return word == std::numeric_limits<uint32_t>::max() ? word : word + 1;
  }

  absl::string_view notes() const override { return "writes"; }

  uint32_t Saved(uint32_t word, const Moment& now) const override {
    return word;
  }

  uint32_t Restored(uint32_t saved, const Moment& now) const override {
    return std::max<uint32_t>(saved, 1);
  }

  double Worth(const JudgedRow& row, const Moment& now) const override {
    return row.word;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeLeastFrequent(
    RuleText text) {
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<LeastFrequent>();
}

}  // namespace tfembed
