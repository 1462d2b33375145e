// What a TableReader reads of keys that wait for admission.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_reader.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {

using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status TableReader::FindWaiting() {
  const std::string keys = WaitingKeysTensor(tensor_name_);
  if (!files_->Contains(keys)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(FindKeys(keys, &waiting_keys_));
  return FindRows(WaitingSeenTensor(tensor_name_), tensorflow::DT_INT32,
                  waiting_keys_.shape, waiting_keys_, &waiting_seen_);
}

absl::Status TableReader::ReadWaiting(int64_t c, Tensor* keys, Tensor* seen) {
  if (waiting_keys_.rows.empty()) {
    *keys = Tensor(key_dtype(), TensorShape({0}));
    *seen = Tensor(tensorflow::DT_INT32, TensorShape({0}));
    return absl::OkStatus();
  }
  const std::string seen_tensor = WaitingSeenTensor(tensor_name_);
  TF_RETURN_IF_ERROR(
      ReadKeys(WaitingKeysTensor(tensor_name_), waiting_keys_, c, keys));
  TF_RETURN_IF_ERROR(ReadSlice(seen_tensor, waiting_seen_, c, seen));
  const auto times = seen->flat<int32_t>();
  for (int64_t i = 0; i < times.size(); ++i) {
    if (times(i) > 0) continue;
    return Explain(
        absl::DataLossError(absl::StrCat("a key that waits was seen ", times(i),
                                         " times, not even once")),
        seen_tensor);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TableReader::FindCounters(
    const EmbeddingTable::CountersShape& each, int64_t num_shards) {
  if (each.num_blocks == 0) return false;
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (!files_->Contains(tensor)) return false;
  absl::StatusOr<SavedTensor> found = files_->Find(tensor);
  if (!found.ok()) return Explain(found.status(), tensor);
  counters_ = *std::move(found);
  const int64_t blocks = num_shards * each.num_blocks;
  if (counters_.dtype != tensorflow::DT_UINT8 ||
      counters_.shape != TensorShape({blocks, each.block_bytes})) {
    return false;
  }
  if (static_cast<int64_t>(counters_.parts.size()) == blocks) return true;
  return Explain(
      absl::DataLossError("its slices are not those of the shards' blocks"),
      tensor);
}

absl::Status TableReader::ReadCounters(
    const EmbeddingTable::CountersShape& each, int64_t block,
    Tensor* counters) {
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (FindKept(tensor, block, counters)) return absl::OkStatus();
  *counters = Tensor(tensorflow::DT_UINT8, TensorShape({1, each.block_bytes}));
  const absl::Status status = files_->ReadPart(counters_, block, counters);
  if (!status.ok()) {
    return ExplainPart(status, absl::StrCat("block ", block), tensor);
  }
  Keep(tensor, block, *counters);
  return status;
}

}  // namespace tfembed
