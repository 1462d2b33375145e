#include "cc/kernels/table_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/table_layout.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

// The memory in which a checkpoint's slices are put together, one buffer for
// each tensor. Slices that were freed would leave gaps: the bundle's index
// takes some bytes of each, the next slice then does not fit there, and the
// heap grows by a chunk each time, to a whole table's size.
class SliceBuffers {
 public:
  // Memory for a slice of `tensor`, until the next one is asked for. REQUIRES:
  // one dtype and one row shape for each tensor, at least one row.
  tensorflow::Tensor Get(const std::string& tensor, tensorflow::DataType dtype,
                         const tensorflow::TensorShape& shape) {
    tensorflow::Tensor& buffer = buffers_[tensor];
    const int64_t rows = shape.dim_size(0);
    if (buffer.dim_size(0) < rows) buffer = tensorflow::Tensor(dtype, shape);
    return buffer.Slice(0, rows);
  }

 private:
  absl::flat_hash_map<std::string, tensorflow::Tensor> buffers_;
};

// A slice that is there already, for BundleWriter, which copies its bytes
// before it returns. The bytes may be unaligned, and must live until then.
tensorflow::Tensor BorrowSlice(tensorflow::DataType dtype,
                               const tensorflow::TensorShape& shape,
                               const void* data) {
  class Borrowed final : public tensorflow::TensorBuffer {
   public:
    Borrowed(const void* data, size_t size)
        : TensorBuffer(const_cast<void*>(data)), size_(size) {}
    size_t size() const override { return size_; }
    bool OwnsMemory() const override { return false; }
    TensorBuffer* root_buffer() override { return this; }
    void FillAllocationDescription(
        tensorflow::AllocationDescription*) const override {}

   private:
    const size_t size_;
  };
  const tensorflow::core::RefCountPtr<Borrowed> buffer(new Borrowed(
      data, shape.num_elements() * tensorflow::DataTypeSize(dtype)));
  return tensorflow::Tensor(dtype, shape, buffer.get());
}

using ::tensorflow::BundleWriter;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

// Writes rows in the order in which they come, chunk by chunk.
class RowWriter {
 public:
  // `first_row` of `num_rows` is the first that it writes.
  RowWriter(const std::string& name, const TableLayout& layout,
            const RowLayout& rows, int64_t first_row, int64_t num_rows,
            BundleWriter* writer)
      : name_(name),
        layout_(layout),
        rows_(rows),
        num_rows_(num_rows),
        writer_(writer),
        next_row_(first_row) {}

  // Rows of a shard. `strings`: as StoreKeys.
  absl::Status Write(const EmbeddingTable::Snapshot& shard,
                     const StringKeys* strings, absl::Span<const int64_t> keys,
                     const float* full_rows) {
    const int64_t n = static_cast<int64_t>(keys.size());
    const std::string keys_tensor = KeysTensor(name_);
    TF_RETURN_IF_ERROR(writer_->AddSlice(keys_tensor, TensorShape({num_rows_}),
                                         TensorSlice({{next_row_, n}}),
                                         Keys(strings, keys, keys_tensor)));
    TF_RETURN_IF_ERROR(WriteColumns(ValuesTensor(name_), ValueDtype(rows_.type),
                                    full_rows, rows_.dim, n));
    const std::vector<std::string>& slots = layout_.slots.names;
    for (size_t s = 0; s < slots.size(); ++s) {
      TF_RETURN_IF_ERROR(
          WriteColumns(SlotTensor(name_, slots[s]), tensorflow::DT_FLOAT,
                       full_rows + rows_.slot_begin(static_cast<int64_t>(s)),
                       rows_.slot_width(static_cast<int64_t>(s)), n));
    }
    if (!layout_.notes.empty()) {
      TF_RETURN_IF_ERROR(WriteNotes(shard, full_rows, n));
    }
    next_row_ += n;
    return absl::OkStatus();
  }

 private:
  Tensor Keys(const StringKeys* strings, absl::Span<const int64_t> keys,
              const std::string& tensor) {
    const TensorShape shape({static_cast<int64_t>(keys.size())});
    const tensorflow::DataType dtype = StoredKeyDtype(strings != nullptr);
    if (strings == nullptr) return BorrowSlice(dtype, shape, keys.data());
    Tensor slice = buffers_.Get(tensor, dtype, shape);
    StoreKeys(strings, keys, &slice);
    return slice;
  }

  // The `dim` numbers that begin at `first` of each of n full rows.
  absl::Status WriteColumns(const std::string& tensor,
                            tensorflow::DataType dtype, const float* first,
                            int64_t dim, int64_t n) {
    const TensorShape shape({num_rows_, dim});
    if (dim == 0) {  // A tensor without elements has no slices.
      if (next_row_ > 0) return absl::OkStatus();
      return writer_->Add(tensor, Tensor(dtype, shape));
    }
    return writer_->AddSlice(tensor, shape,
                             TensorSlice({{next_row_, n}, {0, dim}}),
                             Columns(tensor, dtype, first, dim, n));
  }

  Tensor Columns(const std::string& tensor, tensorflow::DataType dtype,
                 const float* first, int64_t dim, int64_t n) {
    const TensorShape shape({n, dim});
    const int64_t width = rows_.width();
    const int64_t bytes = dim * tensorflow::DataTypeSize(dtype);
    if (bytes == width * RowLayout::kWordBytes) {
      return BorrowSlice(dtype, shape, first);
    }
    Tensor slice = buffers_.Get(tensor, dtype, shape);
    char* out = static_cast<char*>(slice.data());
    for (int64_t i = 0; i < n; ++i) {
      CopyBytes(first + i * width, out + i * bytes, bytes);
    }
    return slice;
  }

  absl::Status WriteNotes(const EmbeddingTable::Snapshot& shard,
                          const float* full_rows, int64_t n) {
    const std::string tensor = NotesTensor(name_);
    Tensor slice = buffers_.Get(tensor, tensorflow::DT_INT64, TensorShape({n}));
    int64_t* out = slice.flat<int64_t>().data();
    for (int64_t i = 0; i < n; ++i) {
      out[i] = shard.Note(full_rows + i * rows_.width());
    }
    return writer_->AddSlice(tensor, TensorShape({num_rows_}),
                             TensorSlice({{next_row_, n}}), slice);
  }

  const std::string& name_;
  const TableLayout& layout_;
  const RowLayout& rows_;
  const int64_t num_rows_;
  BundleWriter* const writer_;
  SliceBuffers buffers_;
  int64_t next_row_;
};

// As RowWriter, of no rows.
absl::Status WriteEmpty(const std::string& name, const TableLayout& layout,
                        BundleWriter* writer) {
  const TensorShape shape({0, layout.dim});
  TF_RETURN_IF_ERROR(writer->Add(
      KeysTensor(name), Tensor(StoredKeyDtype(layout.keys == KeyKind::kString),
                               TensorShape({0}))));
  TF_RETURN_IF_ERROR(writer->Add(ValuesTensor(name),
                                 Tensor(ValueDtype(layout.values), shape)));
  for (size_t s = 0; s < layout.slots.names.size(); ++s) {
    const int64_t width = SlotWidth(layout.slots.row_wise, s, layout.dim);
    TF_RETURN_IF_ERROR(
        writer->Add(SlotTensor(name, layout.slots.names[s]),
                    Tensor(tensorflow::DT_FLOAT, TensorShape({0, width}))));
  }
  if (layout.notes.empty()) return absl::OkStatus();
  return writer->Add(NotesTensor(name),
                     Tensor(tensorflow::DT_INT64, TensorShape({0})));
}

// With its key.
int64_t RowBytes(int64_t full_width) {
  return 8 + RowLayout::kWordBytes * full_width;
}

absl::Status WriteText(const std::string& tensor, const std::string& content,
                       BundleWriter* writer) {
  Tensor text(tensorflow::DT_STRING, TensorShape({}));
  text.scalar<tensorflow::tstring>()() = content;
  return writer->Add(tensor, text);
}

constexpr int64_t kWaitingChunk = int64_t{1} << 20;  // Keys.

// The keys of all shards that wait for admission, chunk by chunk.
class WaitingWriter {
 public:
  WaitingWriter(const std::string& name, int64_t first, int64_t num_keys,
                BundleWriter* writer)
      : name_(name), num_keys_(num_keys), writer_(writer), next_(first) {}

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
  int64_t next_;
};

using Snapshots = std::vector<std::unique_ptr<EmbeddingTable::Snapshot>>;

// The blocks of all shards, one after the other.
absl::Status WriteCounters(const SavedTable& table,
                           const EmbeddingTable::CountersShape& each,
                           const Snapshots& shards, BundleWriter* writer) {
  const auto num_shards = static_cast<int64_t>(shards.size());
  const TensorShape shape(
      {table.all_shards * each.num_blocks, each.block_bytes});
  Tensor block(tensorflow::DT_UINT8, TensorShape({1, each.block_bytes}));
  for (int64_t i = 0; i < num_shards * each.num_blocks; ++i) {
    const int64_t shard = i / each.num_blocks, own_block = i % each.num_blocks;
    const absl::Span<const uint8_t> counters =
        shards[shard]->counters(own_block);
    std::copy(counters.begin(), counters.end(), block.flat<uint8_t>().data());
    TF_RETURN_IF_ERROR(writer->AddSlice(
        WaitingCountersTensor(table.tensor_name, each.kind), shape,
        TensorSlice(
            {{table.shard_numbers[shard] * each.num_blocks + own_block, 1},
             {0, each.block_bytes}}),
        block));
  }
  return absl::OkStatus();
}

// Where the rows of a process are among those of all.
struct Share {
  CheckpointMeeting::Part own, before, all;
  // Whether no process before this one has shards, so that this one writes what
  // is there once.
  bool is_first() const { return own.shards > 0 && before.shards == 0; }
};

absl::StatusOr<Share> Meet(const Snapshots& shards,
                           CheckpointMeeting* meeting) {
  Share share;
  for (const auto& shard : shards) {
    share.own.rows += shard->size();
    share.own.waiting += shard->num_waiting();
    ++share.own.shards;
  }
  share.all = share.own;
  if (meeting == nullptr) return share;
  const auto parts = meeting->Exchange(share.own);
  if (!parts.ok()) return parts.status();
  share.all = {};
  for (int64_t i = 0; i < static_cast<int64_t>(parts->size()); ++i) {
    if (i == meeting->owner()) share.before = share.all;
    share.all.rows += (*parts)[i].rows;
    share.all.waiting += (*parts)[i].waiting;
    share.all.shards += (*parts)[i].shards;
  }
  return share;
}

// What the admission has seen of keys without a row.
absl::Status WriteWaiting(const SavedTable& table, const Snapshots& shards,
                          const Share& share, BundleWriter* writer) {
  const EmbeddingTable::CountersShape counters =
      table.shards[0]->counters_shape();
  for (const EmbeddingTable* shard : table.shards) {
    if (shard->counters_shape() != counters) return ShardsDiffer();
  }
  WaitingWriter waiting(table.tensor_name, share.before.waiting,
                        share.all.waiting, writer);
  for (size_t s = 0; s < shards.size(); ++s) {
    const StringKeys* const strings = table.shards[s]->strings();
    TF_RETURN_IF_ERROR(shards[s]->VisitWaiting(
        kWaitingChunk,
        [&](absl::Span<const int64_t> keys, absl::Span<const int32_t> seen) {
          return waiting.Write(strings, keys, seen);
        }));
  }
  return WriteCounters(table, counters, shards, writer);
}

}  // namespace

int64_t ChunkRows(int64_t full_width) {
  return std::max<int64_t>(1, kChunkBytes / RowBytes(full_width));
}

absl::Status WriteTable(const SavedTable& table, Executor* executor,
                        BundleWriter* writer, WriteBack* write_back,
                        bool* wrote) {
  const absl::Span<const EmbeddingTable* const> tables = table.shards;
  const std::string& name = table.tensor_name;
  // The locks come first: what is read below is of their moment.
  const KeysStay keys_stay(tables);
  const auto shards = FreezeAll(tables);
  const absl::StatusOr<Share> share = Meet(shards, table.meeting);
  if (!share.ok()) return share.status();
  if (shards.empty()) return absl::OkStatus();
  const RowLayout& row_layout = shards[0]->layout();
  const TableLayout layout = {
      row_layout.dim,
      tables[0]->key_kind(),
      row_layout.type,
      shards[0]->seed(),
      table.with_slots ? shards[0]->slots() : SlotLayout(),
      std::string(tables[0]->notes())};
  if (share->is_first()) {
    TF_RETURN_IF_ERROR(WriteText(LayoutTensor(name), layout.ToText(), writer));
    TF_RETURN_IF_ERROR(
        WriteText(TableNameTensor(name), table.table_name, writer));
  }
  TF_RETURN_IF_ERROR(WriteWaiting(table, shards, *share, writer));
  *wrote = *wrote || share->is_first() || share->own.rows > 0 ||
           share->own.waiting > 0 || tables[0]->counters_shape().num_blocks > 0;
  if (share->is_first() && share->all.rows == 0) {
    return WriteEmpty(name, layout, writer);
  }
  RowWriter rows(name, layout, row_layout, share->before.rows, share->all.rows,
                 writer);
  ProgressLog progress(absl::StrCat("Saving table '", table.table_name, "'"),
                       share->own.rows);
  for (size_t s = 0; s < shards.size(); ++s) {
    const StringKeys* const strings = tables[s]->strings();
    TF_RETURN_IF_ERROR(shards[s]->Visit(
        ChunkRows(row_layout.width()),
        [&](absl::Span<const int64_t> keys, const float* full_rows) {
          const absl::Status status =
              rows.Write(*shards[s], strings, keys, full_rows);
          write_back->Add(keys.size() * RowBytes(row_layout.width()));
          progress.Add(keys.size());
          return status;
        },
        executor));
  }
  return absl::OkStatus();
}

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

}  // namespace tfembed
