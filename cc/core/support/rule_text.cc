#include "cc/core/support/rule_text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tfembed {

absl::StatusOr<RuleText> RuleText::Parse(absl::string_view text) {
  const std::vector<std::string> words =
      absl::StrSplit(text, ' ', absl::SkipEmpty());
  RuleText result;
  if (!words.empty()) result.name_ = words[0];
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("An update rule is written `name parameter=value ...`; "
                       "got the word `",
                       words[i], "` in `", text, "`."));
    }
    const std::string parameter = words[i].substr(0, equals);
    if (!result.values_.emplace(parameter, words[i].substr(equals + 1))
             .second) {
      return absl::InvalidArgumentError(absl::StrCat(
          result.name_, ": `", parameter, "` is given twice in `", text, "`."));
    }
  }
  return result;
}

void RuleText::Read(absl::string_view parameter, float* value) {
  ReadNumber(parameter, &absl::SimpleAtof, value);
}

void RuleText::Read(absl::string_view parameter, bool* value) {
  const std::string* text = Take(parameter);
  if (text == nullptr) return;
  *value = *text == "1";
  Require(*text == "0" || *text == "1", parameter, "0 or 1");
}

void RuleText::ReadFinite(absl::string_view parameter, float* value) {
  Read(parameter, value);
  Require(std::isfinite(*value), parameter, "finite");
}

void RuleText::ReadPositive(absl::string_view parameter, float* value) {
  Read(parameter, value);
  Require(*value > 0 && std::isfinite(*value), parameter,
          "finite and positive");
}

void RuleText::ReadNotNegative(absl::string_view parameter, float* value) {
  Read(parameter, value);
  Require(*value >= 0 && std::isfinite(*value), parameter,
          "finite and not negative");
}

void RuleText::ReadDecay(absl::string_view parameter, Decay* value) {
  ReadDecay(parameter, value, /*with_1=*/true);
}

void RuleText::ReadDecayBelow1(absl::string_view parameter, Decay* value) {
  ReadDecay(parameter, value, /*with_1=*/false);
}

void RuleText::ReadDecay(absl::string_view parameter, Decay* value,
                         bool with_1) {
  double kept;
  if (!ReadNumber(parameter, &absl::SimpleAtod, &kept)) return;
  Require(kept >= 0 && (with_1 ? kept <= 1 : kept < 1), parameter,
          with_1 ? "in [0, 1]" : "in [0, 1)");
  *value = Decay(kept);
}

template <class Number>
bool RuleText::ReadNumber(absl::string_view parameter,
                          bool (*parse)(absl::string_view, Number*),
                          Number* value) {
  const std::string* text = Take(parameter);
  if (text == nullptr) return false;
  if (parse(*text, value) && !std::isnan(*value)) return true;
  Fail(absl::StrCat(name_, ": `", parameter, "` must be a number; got `", *text,
                    "`."));
  return false;
}

void RuleText::Require(bool holds, absl::string_view parameter,
                       absl::string_view allowed) {
  if (holds) return;
  const auto found = values_.find(std::string(parameter));
  Fail(absl::StrCat(name_, ": `", parameter, "` must be ", allowed, "; got `",
                    found == values_.end() ? "its default" : found->second,
                    "`."));
}

absl::Status RuleText::Finish() const {
  for (const auto& [parameter, value] : values_) {
    if (std::find(known_.begin(), known_.end(), parameter) == known_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, " has no parameter `", parameter, "`; it knows ",
                       absl::StrJoin(known_, ", "), "."));
    }
  }
  return status_;
}

const std::string* RuleText::Take(absl::string_view parameter) {
  known_.emplace_back(parameter);
  const auto found = values_.find(known_.back());
  return found == values_.end() ? nullptr : &found->second;
}

void RuleText::Fail(std::string message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(std::move(message));
}

}  // namespace tfembed
