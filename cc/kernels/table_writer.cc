#include "cc/kernels/table_writer.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/slice_buffers.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_layout.h"
#include "cc/kernels/waiting_writer.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::BundleWriter;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

// Writes rows in the order in which they come, chunk by chunk.
class RowWriter {
 public:
  RowWriter(const std::string& name, const TableLayout& layout,
            const RowLayout& rows, int64_t num_rows, BundleWriter* writer)
      : name_(name),
        layout_(layout),
        rows_(rows),
        num_rows_(num_rows),
        writer_(writer) {}

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
  int64_t next_row_ = 0;
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

absl::Status WriteLayout(const std::string& name, const TableLayout& layout,
                         BundleWriter* writer) {
  Tensor text(tensorflow::DT_STRING, TensorShape({}));
  text.scalar<tensorflow::tstring>()() = layout.ToText();
  return writer->Add(LayoutTensor(name), text);
}

}  // namespace

int64_t ChunkRows(int64_t full_width) {
  return std::max<int64_t>(1, kChunkBytes / RowBytes(full_width));
}

absl::Status WriteTable(absl::Span<const EmbeddingTable* const> tables,
                        const std::string& name, Executor* executor,
                        BundleWriter* writer, WriteBack* write_back) {
  // The locks come first: what is read below is of their moment.
  const KeysStay keys_stay(tables);
  const auto shards = FreezeAll(tables);
  int64_t num_rows = 0;
  for (const auto& shard : shards) num_rows += shard->size();
  const RowLayout& row_layout = shards[0]->layout();
  const TableLayout layout = {
      row_layout.dim,     tables[0]->key_kind(),
      row_layout.type,    shards[0]->seed(),
      shards[0]->slots(), std::string(tables[0]->notes())};
  TF_RETURN_IF_ERROR(WriteLayout(name, layout, writer));
  TF_RETURN_IF_ERROR(WriteWaiting(tables, shards, name, writer));
  if (num_rows == 0) return WriteEmpty(name, layout, writer);
  RowWriter rows(name, layout, row_layout, num_rows, writer);
  for (size_t s = 0; s < shards.size(); ++s) {
    const StringKeys* const strings = tables[s]->strings();
    TF_RETURN_IF_ERROR(shards[s]->Visit(
        ChunkRows(row_layout.width()),
        [&](absl::Span<const int64_t> keys, const float* full_rows) {
          const absl::Status status =
              rows.Write(*shards[s], strings, keys, full_rows);
          write_back->Add(keys.size() * RowBytes(row_layout.width()));
          return status;
        },
        executor));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
