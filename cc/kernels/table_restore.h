#ifndef TFEMBED_KERNELS_TABLE_RESTORE_H_
#define TFEMBED_KERNELS_TABLE_RESTORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/table_layout.h"
#include "cc/kernels/table_reader.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The restore of one logical table: Check, which changes nothing, then Replace.
class TableRestore {
 public:
  struct Options {
    std::string table_name;   // For errors and the log.
    std::string tensor_name;  // Its tensors' prefix in the checkpoint.
    std::vector<EmbeddingTable*> shards;
    // Of each of `shards`, among all: rows of those that other processes have
    // are checked and left out.
    std::vector<int64_t> shard_numbers;
    int64_t all_shards = 0;
    bool keep_seed = false;  // Do not take the saved seed of initial rows.
    bool deal_rows = true;   // Fill the shards, by floormod(key, shards).
    bool load_slots = true;
  };

  // The files outlive it.
  TableRestore(Options options, CheckpointFiles* files);

  // Reads all of the table and compares checksums, and chooses the rows that
  // stay where a shard holds fewer than it gets (ChooseRows). The errors of
  // TableReader; InvalidArgument where the saved slots are of another update
  // rule.
  absl::Status Check(Executor* executor);

  // About how many bytes more than now the shards will take, less than 0 where
  // they will take fewer. REQUIRES: Check succeeded.
  int64_t MoreBytes() const;

  // About how many Replace takes besides, for the chunks under way: no more
  // than all rows need.
  int64_t BufferBytes() const;

  // Replaces the content of all shards; exports and saves wait. REQUIRES: Check
  // succeeded. It can fail only where memory runs out, or where the files, what
  // Check read of them being more than CheckpointFiles keeps, fail now; the
  // table is then empty.
  absl::Status Replace(Executor* executor);

  const TableLayout& layout() const { return reader_->layout(); }

 private:
  bool HasSavedSlots() const;
  absl::Status CheckSlots() const;
  // About what a saved key and its row take in a shard.
  int64_t BytesOfKey() const;

  // Calls body(chunk, its executor) for all chunks, some at a time.
  using ChunkBody = std::function<absl::Status(int64_t chunk, Executor* own)>;
  absl::Status ForEachChunk(Executor* executor, const ChunkBody& body) const;

  // Calls body(shard, block, counters) for all saved counters that fit.
  using CountersBody = std::function<void(EmbeddingTable* shard, int64_t block,
                                          absl::Span<const uint8_t> counters)>;
  absl::Status ForEachCounters(const CountersBody& body);

  // Reads and compares all rows, of which no two have one key.
  absl::Status CheckRows(Executor* executor);
  // The same of keys that wait.
  absl::Status CheckWaiting();
  void CountKeys(const tensorflow::Tensor& keys);
  absl::Status Clear();
  absl::Status Choose();
  // Among the shards here; -1: none of them.
  int64_t ShardOf(const tensorflow::Tensor& keys, int64_t i) const;
  int64_t OwnKeys() const;
  absl::Status DealRows(Executor* executor);
  absl::Status DealChunk(int64_t chunk, Executor* executor,
                         ProgressLog* progress);

  Options options_;
  std::vector<int64_t> local_;  // Of each of all shards, -1 elsewhere.
  std::unique_ptr<TableReader> reader_;
  std::unique_ptr<std::atomic<int64_t>[]> num_keys_;  // Each shard's, dealt.
  std::atomic<int64_t> total_keys_{0};
  std::atomic<int64_t> string_bytes_{0};  // All string keys'.
  std::optional<bool> has_counters_;      // Once ForEachCounters has looked.
  std::vector<bool> stays_;               // By row; empty where all do.
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_RESTORE_H_
