#include "cc/kernels/checkpoint_check.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/checkpoint_files.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace tfembed {
namespace {

absl::Status CompareChecksum(CheckpointFiles* files, int64_t entry) {
  const absl::Status status = files->CompareChecksum(entry);
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(
      "'", files->PathOf(entry), "' is damaged or cut off: tensor '",
      Printable(files->index().name(entry)), "': ", status.message(), "."));
}

absl::Status NoName(const std::string& prefix, absl::string_view name) {
  return absl::DataLossError(
      absl::StrCat("'", tensorflow::MetaFilename(prefix),
                   "' is damaged or cut off: the name '", Printable(name),
                   "' is neither text nor that of a slice."));
}

}  // namespace

absl::Status CheckCheckpoint(tensorflow::Env* env, const std::string& prefix,
                             bool checksums) {
  CheckpointFiles files(env, prefix);
  TF_RETURN_IF_ERROR(files.status());
  const int64_t n = files.index().size();
  std::vector<bool> has_name(n);
  for (int64_t i = 0; i < n; ++i) {
    const auto saved = files.Check(i);
    if (!saved.ok()) return saved.status();
    if (checksums) TF_RETURN_IF_ERROR(CompareChecksum(&files, i));
    for (const SavedTensor::Part& part : saved->parts) {
      if (part.entry != i) has_name[part.entry] = true;
    }
    // Slices without elements are no parts.
    if (saved->bytes == 0 || IsUtf8(files.index().name(i))) has_name[i] = true;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (!has_name[i]) return NoName(prefix, files.index().name(i));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
