#include "cc/core/policies/smallest_norm.h"

#include <cmath>

namespace tfembed {
namespace {

class SmallestNorm final : public EvictionPolicy {
 public:
  int meta_words() const override { return 0; }
  bool counts() const override { return false; }

  uint32_t Touch(uint32_t word, const Moment& now) const override {
    return word;
  }

  absl::string_view notes() const override { return ""; }
  uint32_t Saved(uint32_t word, const Moment& now) const override { return 0; }
  uint32_t Restored(uint32_t saved, const Moment& now) const override {
    return 0;
  }

  double Worth(const JudgedRow& row, const Moment& now) const override {
    const double sum = row.type.SquaredNorm(row.value, row.dim);
    return std::isnan(sum) ? -1 : std::sqrt(sum);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeSmallestNorm(
    RuleText text) {
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<SmallestNorm>();
}

}  // namespace tfembed
