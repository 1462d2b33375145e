#ifndef TFEMBED_KERNELS_WAITING_WRITER_H_
#define TFEMBED_KERNELS_WAITING_WRITER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/embedding_table.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {

// Writes what the admission of a logical table has seen of keys without a row:
// the tensors of WaitingKeysTensor and its neighbours in table_layout.h.
// `shards` are the snapshots of `tables`, whose strings stay what they are.
absl::Status WriteWaiting(
    absl::Span<const EmbeddingTable* const> tables,
    const std::vector<std::unique_ptr<EmbeddingTable::Snapshot>>& shards,
    const std::string& name, tensorflow::BundleWriter* writer);

// What is said where the shards of a table do not count alike.
absl::Status ShardsDiffer();

// Writes keys as checkpoints have them. `strings` name them; null where they
// are numbers.
void StoreKeys(const StringKeys* strings, absl::Span<const int64_t> keys,
               tensorflow::Tensor* to);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_WAITING_WRITER_H_
