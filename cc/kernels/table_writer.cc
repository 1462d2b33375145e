#include "cc/kernels/table_writer.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/table_layout.h"
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
            int64_t num_rows, BundleWriter* writer)
      : name_(name), layout_(layout), num_rows_(num_rows), writer_(writer) {}

  absl::Status Write(absl::Span<const int64_t> keys, const float* full_rows) {
    const int64_t n = static_cast<int64_t>(keys.size());
    Tensor key_slice(tensorflow::DT_INT64, TensorShape({n}));
    std::copy(keys.begin(), keys.end(), key_slice.flat<int64_t>().data());
    TF_RETURN_IF_ERROR(
        writer_->AddSlice(KeysTensor(name_), TensorShape({num_rows_}),
                          TensorSlice({{next_row_, n}}), key_slice));
    TF_RETURN_IF_ERROR(WriteColumns(ValuesTensor(name_), full_rows, n));
    for (const std::string& slot : layout_.slots.names) {
      full_rows += layout_.dim;
      TF_RETURN_IF_ERROR(WriteColumns(SlotTensor(name_, slot), full_rows, n));
    }
    next_row_ += n;
    return absl::OkStatus();
  }

 private:
  // The `dim` columns that begin at `first` of each of n full rows.
  absl::Status WriteColumns(const std::string& tensor, const float* first,
                            int64_t n) {
    const int64_t dim = layout_.dim;
    const int64_t full_width =
        dim * (1 + static_cast<int64_t>(layout_.slots.names.size()));
    Tensor slice(tensorflow::DT_FLOAT, TensorShape({n, dim}));
    float* out = slice.flat<float>().data();
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(first + i * full_width, dim, out + i * dim);
    }
    return writer_->AddSlice(tensor, TensorShape({num_rows_, dim}),
                             TensorSlice({{next_row_, n}, {0, dim}}), slice);
  }

  const std::string& name_;
  const TableLayout& layout_;
  const int64_t num_rows_;
  BundleWriter* const writer_;
  int64_t next_row_ = 0;
};

// A tensor without elements has no slices.
absl::Status WriteEmpty(const std::string& name, const TableLayout& layout,
                        BundleWriter* writer) {
  const Tensor rows(tensorflow::DT_FLOAT, TensorShape({0, layout.dim}));
  TF_RETURN_IF_ERROR(writer->Add(
      KeysTensor(name), Tensor(tensorflow::DT_INT64, TensorShape({0}))));
  TF_RETURN_IF_ERROR(writer->Add(ValuesTensor(name), rows));
  for (const std::string& slot : layout.slots.names) {
    TF_RETURN_IF_ERROR(writer->Add(SlotTensor(name, slot), rows));
  }
  return absl::OkStatus();
}

absl::Status WriteLayout(const std::string& name, const TableLayout& layout,
                         BundleWriter* writer) {
  Tensor text(tensorflow::DT_STRING, TensorShape({}));
  text.scalar<tensorflow::tstring>()() = layout.ToText();
  return writer->Add(LayoutTensor(name), text);
}

}  // namespace

int64_t ChunkRows(int64_t full_width) {
  const int64_t row_bytes = 8 + 4 * full_width;
  return std::max<int64_t>(1, kChunkBytes / row_bytes);
}

absl::Status WriteTable(absl::Span<const EmbeddingTable* const> tables,
                        const std::string& name, BundleWriter* writer) {
  // The locks come first: what is read below is of their moment.
  std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> shards;
  int64_t num_rows = 0;
  for (const EmbeddingTable* table : tables) {
    shards.push_back(table->Freeze());
    num_rows += shards.back()->size();
  }
  const TableLayout layout = {tables[0]->dim(), tables[0]->seed(),
                              shards[0]->slots()};
  TF_RETURN_IF_ERROR(WriteLayout(name, layout, writer));
  if (num_rows == 0) return WriteEmpty(name, layout, writer);
  RowWriter rows(name, layout, num_rows, writer);
  const int64_t full_width =
      layout.dim * (1 + static_cast<int64_t>(layout.slots.names.size()));
  for (const auto& shard : shards) {
    TF_RETURN_IF_ERROR(shard->Visit(
        ChunkRows(full_width),
        [&rows](absl::Span<const int64_t> keys, const float* full_rows) {
          return rows.Write(keys, full_rows);
        }));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
