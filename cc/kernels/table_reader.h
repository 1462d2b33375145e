#ifndef TFEMBED_KERNELS_TABLE_READER_H_
#define TFEMBED_KERNELS_TABLE_READER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/checkpoint_files.h"
#include "cc/kernels/table_layout.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// One logical table in a checkpoint, read chunk by chunk. Errors name the
// table, the tensor and the checkpoint, and say what was found and what is
// allowed: NotFound: the checkpoint has no such table; InvalidArgument: another
// width, dtype, shape or format; DataLoss: the files are damaged. Thread-safe
// after Open.
class TableReader {
 public:
  // `tensor_name` is the prefix of its tensors, `table_name` what errors call
  // it. The files outlive the reader.
  TableReader(std::string table_name, std::string tensor_name,
              CheckpointFiles* files)
      : table_name_(std::move(table_name)),
        tensor_name_(std::move(tensor_name)),
        files_(files) {}

  // Reads the layout, checks that `table` can take it, and the tensors' dtypes
  // and shapes.
  absl::Status Open(const EmbeddingTable& table);

  // REQUIRES of the rest: Open succeeded.
  const TableLayout& layout() const { return layout_; }

  // At least 1; the only chunk of an empty table is empty.
  int64_t num_chunks() const {
    return static_cast<int64_t>(keys_.rows.size()) - 1;
  }

  // Reads every byte of chunk c and compares checksums. `keys` are its keys.
  absl::Status VerifyChunk(int64_t c, tensorflow::Tensor* keys);

  // Row number of the first row of chunk c; of the last one + 1: num_keys().
  int64_t first_row(int64_t c) const { return keys_.rows[c]; }

  // InvalidArgument: a shard `table` of bounded size gets more rows than it
  // holds, and the checkpoint lacks the notes by which its policy judges them.
  absl::Status CheckBound(const EmbeddingTable& table, int64_t rows,
                          int64_t shard);

  // Reads the keys of chunk c, and the worth of its rows once `table` has
  // imported them. REQUIRES: the table has an eviction policy, and the notes
  // that it judges by are in the checkpoint.
  absl::Status ReadWorth(int64_t c, const EmbeddingTable& table,
                         const Moment& now, tensorflow::Tensor* keys,
                         std::vector<double>* worth);

  // Reads the keys alone of chunk c.
  absl::Status ReadKeys(int64_t c, tensorflow::Tensor* keys);

  int64_t num_keys() const { return keys_.shape.dim_size(0); }

  // The error of a key, as text, that comes more than once: among those with
  // rows, or those that wait.
  absl::Status RefuseKey(absl::string_view key, bool waits);

  // Reads chunk c as `table` imports it: `keys`, and full rows, as words, with
  // the slots that were saved too if `load_slots`, the others initial.
  absl::Status ReadChunk(int64_t c, const EmbeddingTable& table,
                         bool load_slots, tensorflow::Tensor* keys,
                         tensorflow::Tensor* rows);

  // The same, of keys that wait for admission: the only chunk is empty where
  // the checkpoint has none.
  int64_t num_waiting_chunks() const {
    return std::max<int64_t>(
        1, static_cast<int64_t>(waiting_keys_.rows.size()) - 1);
  }

  int64_t num_waiting() const {
    return waiting_keys_.rows.empty() ? 0 : waiting_keys_.rows.back();
  }

  // Chunk c of them, and in how many steps each was seen.
  absl::Status ReadWaiting(int64_t c, tensorflow::Tensor* keys,
                           tensorflow::Tensor* seen);

  // Whether the checkpoint has counters for so many shards of this shape, and
  // block number `block` of all, as a [1, block_bytes] tensor.
  absl::StatusOr<bool> FindCounters(const EmbeddingTable::CountersShape& each,
                                    int64_t num_shards);
  absl::Status ReadCounters(const EmbeddingTable::CountersShape& each,
                            int64_t block, tensorflow::Tensor* counters);

 private:
  absl::Status CheckFits(const EmbeddingTable& table);
  // Finds a tensor, which must be of this dtype and shape.
  absl::Status FindTensor(const std::string& tensor, tensorflow::DataType dtype,
                          const tensorflow::TensorShape& shape,
                          SavedTensor* saved);
  // Finds the keys, which are a vector, and whose slices are the chunks.
  absl::Status FindKeys(const std::string& tensor, SavedTensor* keys);
  // Finds a tensor that has these rows, in slices that are those of `keys`.
  absl::Status FindRows(const std::string& tensor, tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape,
                        const SavedTensor& keys, SavedTensor* saved);
  absl::Status ReadLayout();
  absl::Status FindChunks();
  absl::Status FindWaiting();

  absl::Status ReadSlice(const std::string& tensor, const SavedTensor& saved,
                         int64_t c, tensorflow::Tensor* slice);
  absl::Status ReadKeys(const std::string& tensor, const SavedTensor& saved,
                        int64_t c, tensorflow::Tensor* keys);
  // Keys of 32 bits are stored wider; others cannot be the table's.
  absl::Status CheckKeys(const std::string& tensor,
                         const tensorflow::Tensor& keys);
  int64_t SavedSlotWidth(int64_t slot) const;
  // `status` with the table, the tensor and the checkpoint in front.
  absl::Status Explain(const absl::Status& status, absl::string_view tensor);
  // The same of an error of reading a part of a tensor.
  absl::Status ExplainPart(const absl::Status& status, absl::string_view part,
                           absl::string_view tensor);

  // Finds content that was read and checked before, as far as CheckpointFiles
  // allowed to keep it: so the table gets what was checked.
  bool FindKept(const std::string& tensor, int64_t part,
                tensorflow::Tensor* content) const;
  void Keep(const std::string& tensor, int64_t part,
            const tensorflow::Tensor& content);

  tensorflow::DataType key_dtype() const;  // As stored.
  tensorflow::DataType value_dtype() const;

  const std::string table_name_;
  const std::string tensor_name_;
  CheckpointFiles* const files_;
  TableLayout layout_;
  SavedTensor keys_, values_, notes_;
  std::vector<SavedTensor> slots_;
  // The keys that wait; without rows where none do.
  SavedTensor waiting_keys_, waiting_seen_;
  SavedTensor counters_;  // As FindCounters found them.
  mutable std::mutex kept_mutex_;
  // By tensor and part. Guarded by kept_mutex_.
  std::map<std::pair<std::string, int64_t>, tensorflow::Tensor> kept_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_READER_H_
