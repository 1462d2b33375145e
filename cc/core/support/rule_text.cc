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

bool RuleText::Read(absl::string_view parameter, bool* value) {
  const std::string* text = Take(parameter);
  if (text == nullptr) return false;
  *value = *text == "1";
  Require(*text == "0" || *text == "1", parameter, "0 or 1");
  return true;
}

bool RuleText::Read(absl::string_view parameter, float* value) {
  return ReadNumber(parameter, &absl::SimpleAtof, value);
}

bool RuleText::Read(absl::string_view parameter, double* value) {
  return ReadNumber(parameter, &absl::SimpleAtod, value);
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
