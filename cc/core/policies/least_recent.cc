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

  absl::string_view notes() const override {
    return seconds_ ? "seconds_since_1970" : "steps_ago";
  }

  uint32_t Saved(uint32_t word, const Moment& now) const override {
    return seconds_ ? word : now.step - word;
  }

  uint32_t Restored(uint32_t saved, const Moment& now) const override {
    if (!seconds_) return now.step - saved;
    return saved == 0 ? now.second : saved;
  }

  // The step of a row that comes from a checkpoint may lie before the table's
  // first: differences are right where the words went round.
  double Worth(const JudgedRow& row, const Moment& now) const override {
    return static_cast<int32_t>(row.word - Time(now));
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
