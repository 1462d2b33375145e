#ifndef TFEMBED_KERNELS_TABLE_WRITER_H_
#define TFEMBED_KERNELS_TABLE_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/checkpoint_meeting.h"
#include "cc/kernels/disk_file.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {

// Bytes of rows that are copied at a time when a table is saved or restored.
inline constexpr int64_t kChunkBytes = 2 << 20;

// Rows of `full_width` words that make a chunk; at least 1.
int64_t ChunkRows(int64_t full_width);

// Writes one logical table as slices of the tensors that table_layout.h names
// with `tensor_name` in front. The shards must have one
// layout. All their rows are of one moment: writers of these tables wait until
// it returns, readers do not. One thread copies rows while another writes those
// before, with which the disk begins by `write_back`. Takes a few chunks of
// memory. Sets `wrote` if there was something to write, which a process without
// rows may not have.
struct SavedTable {
  absl::Span<const EmbeddingTable* const> shards;
  std::string table_name;  // In the files and the log.
  std::string tensor_name;
  bool with_slots = true;              // Else as a table without an optimizer.
  std::vector<int64_t> shard_numbers;  // Of each of `shards`, among all.
  int64_t all_shards = 0;
  // Not null where other processes have shards of the table; `shards` may then
  // be none, and the rows of all processes are of one moment.
  CheckpointMeeting* meeting = nullptr;
};
absl::Status WriteTable(const SavedTable& table, Executor* executor,
                        tensorflow::BundleWriter* writer, WriteBack* write_back,
                        bool* wrote);

// The error where the shards of a table do not count alike.
absl::Status ShardsDiffer();

// Writes keys as checkpoints have them. `strings` name them; null where they
// are numbers.
void StoreKeys(const StringKeys* strings, absl::Span<const int64_t> keys,
               tensorflow::Tensor* to);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_WRITER_H_
