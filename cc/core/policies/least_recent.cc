#include "cc/core/policies/least_recent.h"

namespace tfembed {
namespace {

class LeastRecent final : public EvictionPolicy {
 public:
  explicit LeastRecent(bool seconds) : seconds_(seconds) {}

  int meta_words() const override { return 1; }
  bool counts() const override { return false; }

  uint32_t Touch(uint32_t word, const Moment& now) const override {
    return Time(now);
  }

  double Worth(const JudgedRow& row, const Moment& now) const override {
    return static_cast<double>(row.word) - static_cast<double>(Time(now));
  }

 private:
  uint32_t Time(const Moment& now) const {
    return seconds_ ? now.second : now.step;
  }

  const bool seconds_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeLeastRecent(RuleText text) {
  bool seconds = false;
  text.Read("seconds", &seconds);
  absl::Status status = text.Finish();
  if (!status.ok()) return status;
  return std::make_unique<LeastRecent>(seconds);
}

}  // namespace tfembed
