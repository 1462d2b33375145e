#include "cc/core/policies/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/policies/bloom_admission.h"
#include "cc/core/policies/count_admission.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<AdmissionPolicy>> AdmissionPolicy::Parse(
    absl::string_view text) {
  absl::StatusOr<RuleText> parsed = RuleText::Parse(text);
  if (!parsed.ok()) return parsed.status();
  if (parsed->name() == "count") return MakeCountAdmission(*std::move(parsed));
  if (parsed->name() == "bloom") return MakeBloomAdmission(*std::move(parsed));
  return absl::InvalidArgumentError(
      absl::StrCat("Unknown admission policy `", parsed->name(),
                   "`; the policies are bloom and count."));
}

}  // namespace tfembed
