#include "cc/kernels/checkpoint_check.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/checkpoint_files.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace tfembed {
namespace {

absl::Status CheckEntry(CheckpointFiles* files, int64_t entry, bool checksums,
                        SavedTensor* saved) {
  absl::StatusOr<SavedTensor> found = files->Check(entry);
  // An error about the index says so itself.
  if (!found.ok() && IsDamage(found.status())) return found.status();
  absl::Status status = found.status();
  if (found.ok()) *saved = *std::move(found);
  if (status.ok() && checksums) status = files->CompareChecksum(entry);
  if (status.ok()) return status;
  const std::string file = absl::StrCat("'", files->PathOf(entry), "'");
  const std::string what =
      absl::StrCat("tensor '", Printable(files->index().name(entry)),
                   "': ", status.message());
  if (!IsDamage(status)) {
    return absl::Status(status.code(),
                        absl::StrCat(file, " cannot be read: ", what, "."));
  }
  return absl::Status(
      status.code(), absl::StrCat(file, " is damaged or cut off: ", what, "."));
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
    SavedTensor saved;
    TF_RETURN_IF_ERROR(CheckEntry(&files, i, checksums, &saved));
    for (const SavedTensor::Part& part : saved.parts) {
      if (part.entry != i) has_name[part.entry] = true;
    }
    // Slices without elements are no parts.
    if (saved.bytes == 0 || IsUtf8(files.index().name(i))) has_name[i] = true;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (!has_name[i]) return NoName(prefix, files.index().name(i));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
