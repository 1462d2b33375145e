#include "cc/kernels/key_batch.h"

#include "cc/kernels/table_dtypes.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {

absl::Status KeyBatch::Read(const TableResource& table,
                            const tensorflow::Tensor& keys) {
  TF_RETURN_IF_ERROR(CheckKeyDtype(table, keys.dtype()));
  const auto n = static_cast<size_t>(keys.NumElements());
  if (keys.dtype() == tensorflow::DT_INT64) {
    span_ = {keys.flat<int64_t>().data(), n};
    return absl::OkStatus();
  }
  const int32_t* narrow = keys.flat<int32_t>().data();
  widened_.assign(narrow, narrow + n);
  span_ = widened_;
  return absl::OkStatus();
}

}  // namespace tfembed
