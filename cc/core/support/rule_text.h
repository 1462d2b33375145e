#ifndef TFEMBED_CORE_SUPPORT_RULE_TEXT_H_
#define TFEMBED_CORE_SUPPORT_RULE_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tfembed {

// The text of an update rule or a policy, "name parameter=value ...", on its
// way into a struct. The first problem is kept, and returned by Finish().
class RuleText {
 public:
  // InvalidArgument where a word is not name=value or comes twice.
  static absl::StatusOr<RuleText> Parse(absl::string_view text);

  const std::string& name() const { return name_; }

  // Overwrite *value where the text has the parameter, and say whether they
  // did.
  bool Read(absl::string_view parameter, bool* value);
  bool Read(absl::string_view parameter, float* value);
  bool Read(absl::string_view parameter, double* value);

  // Where `holds` is false: "<name>: `<parameter>` must be <allowed>; got ...".
  void Require(bool holds, absl::string_view parameter,
               absl::string_view allowed);

  // InvalidArgument where a parameter is unknown, that is, was never read.
  absl::Status Finish() const;

 private:
  // Reads a number by `parse`.
  template <class Number>
  bool ReadNumber(absl::string_view parameter,
                  bool (*parse)(absl::string_view, Number*), Number* value);
  const std::string* Take(absl::string_view parameter);
  void Fail(std::string message);

  std::string name_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_RULE_TEXT_H_
