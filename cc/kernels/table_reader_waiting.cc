// What a TableReader reads of keys that wait for admission.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_reader.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {

using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

absl::Status TableReader::FindWaiting() {
  const std::string keys = WaitingKeysTensor(tensor_name_);
  if (!files_->Contains(keys)) return absl::OkStatus();
  TensorShape shape;
  const absl::Status status = files_->reader()->LookupTensorShape(keys, &shape);
  if (!status.ok()) return Explain(status, keys);
  const TensorShape vector({shape.num_elements()});
  TF_RETURN_IF_ERROR(CheckTensor(keys, key_dtype(), vector));
  TF_RETURN_IF_ERROR(CheckTensor(WaitingSeenTensor(tensor_name_),
                                 tensorflow::DT_INT32, vector));
  return FindSlices(keys, vector.num_elements(), &waiting_);
}

absl::Status TableReader::ReadWaiting(int64_t c, Tensor* keys, Tensor* seen) {
  if (waiting_.empty()) {
    *keys = Tensor(key_dtype(), TensorShape({0}));
    *seen = Tensor(tensorflow::DT_INT32, TensorShape({0}));
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(ReadSlice(WaitingKeysTensor(tensor_name_), waiting_, c,
                               key_dtype(), kVector, keys));
  return ReadSlice(WaitingSeenTensor(tensor_name_), waiting_, c,
                   tensorflow::DT_INT32, kVector, seen);
}

absl::StatusOr<bool> TableReader::HasCounters(
    const EmbeddingTable::CountersShape& each, int64_t num_shards) {
  if (each.num_blocks == 0) return false;
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (!files_->Contains(tensor)) return false;
  tensorflow::DataType dtype;
  TensorShape shape;
  const absl::Status status =
      files_->reader()->LookupDtypeAndShape(tensor, &dtype, &shape);
  if (!status.ok()) return Explain(status, tensor);
  return dtype == tensorflow::DT_UINT8 &&
         shape == TensorShape({num_shards * each.num_blocks, each.block_bytes});
}

absl::Status TableReader::ReadCounters(
    const EmbeddingTable::CountersShape& each, int64_t block,
    Tensor* counters) {
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (FindKept(tensor, block, counters)) return absl::OkStatus();
  *counters = Tensor(tensorflow::DT_UINT8, TensorShape({1, each.block_bytes}));
  const CheckpointFiles::Reader reader = files_->reader();
  absl::Status status = reader->status();
  if (status.ok()) {
    status = reader->LookupSlice(
        tensor, TensorSlice({{block, 1}, {0, each.block_bytes}}), counters);
  }
  if (status.ok()) {
    Keep(tensor, block, *counters);
    return status;
  }
  return ExplainPart(status, absl::StrCat("block ", block), tensor);
}

}  // namespace tfembed
