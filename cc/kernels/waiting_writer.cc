#include "cc/kernels/waiting_writer.h"

#include <algorithm>
#include <cstdint>

#include "cc/kernels/key_batch.h"
#include "cc/kernels/slice_buffers.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_layout.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::BundleWriter;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

constexpr int64_t kWaitingChunk = int64_t{1} << 20;  // Keys.

// The keys of all shards that wait for admission, chunk by chunk.
class WaitingWriter {
 public:
  WaitingWriter(const std::string& name, int64_t num_keys, BundleWriter* writer)
      : name_(name), num_keys_(num_keys), writer_(writer) {}

  // `strings`: as StoreKeys.
  absl::Status Write(const StringKeys* strings, absl::Span<const int64_t> keys,
                     absl::Span<const int32_t> seen) {
    const int64_t n = static_cast<int64_t>(keys.size());
    const std::string keys_tensor = WaitingKeysTensor(name_);
    const std::string seen_tensor = WaitingSeenTensor(name_);
    Tensor key_slice = buffers_.Get(
        keys_tensor, StoredKeyDtype(strings != nullptr), TensorShape({n}));
    StoreKeys(strings, keys, &key_slice);
    Tensor seen_slice =
        buffers_.Get(seen_tensor, tensorflow::DT_INT32, TensorShape({n}));
    std::copy(seen.begin(), seen.end(), seen_slice.flat<int32_t>().data());
    const TensorShape shape({num_keys_});
    const TensorSlice slice({{next_, n}});
    next_ += n;
    TF_RETURN_IF_ERROR(writer_->AddSlice(keys_tensor, shape, slice, key_slice));
    return writer_->AddSlice(seen_tensor, shape, slice, seen_slice);
  }

 private:
  const std::string& name_;
  const int64_t num_keys_;
  BundleWriter* const writer_;
  SliceBuffers buffers_;
  int64_t next_ = 0;
};

// The blocks of all shards, one after the other.
absl::Status WriteCounters(
    const EmbeddingTable::CountersShape& each,
    const std::vector<std::unique_ptr<EmbeddingTable::Snapshot>>& shards,
    const std::string& name, BundleWriter* writer) {
  const auto num_shards = static_cast<int64_t>(shards.size());
  const TensorShape shape({num_shards * each.num_blocks, each.block_bytes});
  Tensor block(tensorflow::DT_UINT8, TensorShape({1, each.block_bytes}));
  for (int64_t row = 0; row < shape.dim_size(0); ++row) {
    const absl::Span<const uint8_t> counters =
        shards[row / each.num_blocks]->counters(row % each.num_blocks);
    std::copy(counters.begin(), counters.end(), block.flat<uint8_t>().data());
    TF_RETURN_IF_ERROR(writer->AddSlice(
        WaitingCountersTensor(name, each.kind), shape,
        TensorSlice({{row, 1}, {0, each.block_bytes}}), block));
  }
  return absl::OkStatus();
}

}  // namespace

// Keys as checkpoints have them. `strings` name them; null where they are
// numbers.
void StoreKeys(const StringKeys* strings, absl::Span<const int64_t> keys,
               Tensor* to) {
  if (strings != nullptr) return NameKeys(*strings, keys, to);
  std::copy(keys.begin(), keys.end(), to->flat<int64_t>().data());
}

absl::Status ShardsDiffer() {
  return absl::InvalidArgumentError(
      "The shards of a table must have the same admission policy; got some of "
      "different ones.");
}

absl::Status WriteWaiting(
    absl::Span<const EmbeddingTable* const> tables,
    const std::vector<std::unique_ptr<EmbeddingTable::Snapshot>>& shards,
    const std::string& name, BundleWriter* writer) {
  const EmbeddingTable::CountersShape counters = tables[0]->counters_shape();
  for (const EmbeddingTable* table : tables) {
    if (table->counters_shape() != counters) return ShardsDiffer();
  }
  int64_t num_waiting = 0;
  for (const auto& shard : shards) num_waiting += shard->num_waiting();
  WaitingWriter waiting(name, num_waiting, writer);
  for (size_t s = 0; s < shards.size(); ++s) {
    const StringKeys* const strings = tables[s]->strings();
    TF_RETURN_IF_ERROR(shards[s]->VisitWaiting(
        kWaitingChunk,
        [&](absl::Span<const int64_t> keys, absl::Span<const int32_t> seen) {
          return waiting.Write(strings, keys, seen);
        }));
  }
  return WriteCounters(counters, shards, name, writer);
}

}  // namespace tfembed
