#include "cc/kernels/checkpoint_check.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cc/kernels/checkpoint_files.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

absl::Status CompareChecksum(CheckpointFiles* files, int64_t entry) {
  const absl::Status status = files->CompareChecksum(entry);
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(
      "'", files->PathOf(entry), "' is damaged or cut off: tensor '",
      Printable(files->index().name(entry)), "': ", status.message(), "."));
}

}  // namespace

absl::Status CheckCheckpoint(tensorflow::Env* env, const std::string& prefix,
                             bool checksums) {
  CheckpointFiles files(env, prefix);
  TF_RETURN_IF_ERROR(files.status());
  for (int64_t i = 0; i < files.index().size(); ++i) {
    TF_RETURN_IF_ERROR(files.Check(i).status());
    if (checksums) TF_RETURN_IF_ERROR(CompareChecksum(&files, i));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
