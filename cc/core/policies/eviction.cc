#include "cc/core/policies/eviction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {
namespace {

// Notes the batches of writes that a row was in, once each, up to 2^32 - 1;
// that is its worth.
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

// Notes the step of the last write, or its second. The worth is minus the steps
// or seconds since then.
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

// Notes nothing. The worth is the norm; that of a row with a NaN is -1.
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

absl::StatusOr<std::unique_ptr<EvictionPolicy>> EvictionPolicy::Parse(
    absl::string_view text) {
  absl::StatusOr<RuleText> parsed = RuleText::Parse(text);
  if (!parsed.ok()) return parsed.status();
  std::unique_ptr<EvictionPolicy> policy;
  if (parsed->name() == "least_frequent") {
    policy = std::make_unique<LeastFrequent>();
  } else if (parsed->name() == "least_recent") {
    bool seconds = false;
    parsed->Read("seconds", &seconds);
    policy = std::make_unique<LeastRecent>(seconds);
  } else if (parsed->name() == "smallest_norm") {
    policy = std::make_unique<SmallestNorm>();
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "Unknown eviction policy `", parsed->name(),
        "`; the policies are least_frequent, least_recent and smallest_norm."));
  }
  const absl::Status status = parsed->Finish();
  if (!status.ok()) return status;
  return policy;
}

}  // namespace tfembed
