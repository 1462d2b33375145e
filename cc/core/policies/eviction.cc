#include "cc/core/policies/eviction.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/policies/least_frequent.h"
#include "cc/core/policies/least_recent.h"
#include "cc/core/policies/smallest_norm.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<EvictionPolicy>> EvictionPolicy::Parse(
    absl::string_view text) {
  absl::StatusOr<RuleText> parsed = RuleText::Parse(text);
  if (!parsed.ok()) return parsed.status();
  if (parsed->name() == "least_frequent") {
    return MakeLeastFrequent(*std::move(parsed));
  }
  if (parsed->name() == "least_recent") {
    return MakeLeastRecent(*std::move(parsed));
  }
  if (parsed->name() == "smallest_norm") {
    return MakeSmallestNorm(*std::move(parsed));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Unknown eviction policy `", parsed->name(),
      "`; the policies are least_frequent, least_recent and smallest_norm."));
}

}  // namespace tfembed
