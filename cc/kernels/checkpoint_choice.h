#ifndef TFEMBED_KERNELS_CHECKPOINT_CHOICE_H_
#define TFEMBED_KERNELS_CHECKPOINT_CHOICE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/table_reader.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The shard of row number `row` of a saved table, whose key is keys[i]; -1: the
// row goes to none of the shards.
using ShardOfRow = std::function<int64_t(const tensorflow::Tensor& keys,
                                         int64_t i, int64_t row)>;

// Says which rows of a saved table stay where shard s gets `counts[s]` of them
// and some shards hold fewer: those that `evict` would keep of each shard, by
// the notes in the checkpoint, or by the values for a policy that notes
// nothing; of rows of the same worth those that come last. Empty: all stay.
//
// It goes through keys and notes (or values) some three times, and takes 96 KB
// a shard and a bit a row. The errors of TableReader::CheckBound and of
// reading.
absl::StatusOr<std::vector<bool>> ChooseRows(
    const std::vector<EmbeddingTable*>& shards,
    const std::vector<int64_t>& counts, const ShardOfRow& shard_of,
    TableReader* reader);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_CHOICE_H_
