#include "cc/core/policies/smallest_norm.h"

#include <cmath>

namespace tfembed {
namespace {

class SmallestNorm final : public EvictionPolicy {
 public:
  int meta_words() const override { return 0; }

  uint32_t Touch(uint32_t word, const Moment& now) const override {
    return word;
  }

  double Worth(const float* value, int64_t dim, uint32_t word,
               const Moment& now) const override {
    double sum = 0;
    for (int64_t c = 0; c < dim; ++c) {
      sum += static_cast<double>(value[c]) * value[c];
    }
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
