// Kernels that bring a table, with all that its policies noted, into tensors,
// and those notes back.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/embedding_table.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/scalar_input.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_resource.h"
#include "cc/kernels/tf_executor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

constexpr int64_t kChunk = 4096;  // Keys that are copied at a time.

class TableSnapshotOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context,
                   CheckKeyDtype(*table, context->expected_output_dtype(0)));
    OP_REQUIRES_OK(context,
                   CheckValueDtype(*table, context->expected_output_dtype(1)));
    // The locks come first: what is read below is of their moment.
    KeyOutput keys(*table->table());
    const auto frozen = table->table()->Freeze();
    OP_REQUIRES_OK(context, CopyRows(context, *table->table(), *frozen, &keys));
    OP_REQUIRES_OK(context, CopyWaiting(context, *frozen, &keys));
    OP_REQUIRES_OK(context, CopyCounters(context, *table->table(), *frozen));
    Tensor* kinds;
    OP_REQUIRES_OK(context,
                   context->allocate_output(7, TensorShape({2}), &kinds));
    kinds->flat<tstring>()(0) = std::string(table->table()->notes());
    kinds->flat<tstring>()(1) = table->table()->counters_shape().kind;
    keys.Finish();
  }

 private:
  static absl::Status CopyRows(OpKernelContext* context,
                               const EmbeddingTable& table,
                               const EmbeddingTable::Snapshot& frozen,
                               KeyOutput* keys) {
    const RowLayout& layout = frozen.layout();
    const int64_t n = frozen.size();
    const bool has_notes = !table.notes().empty();
    Tensor *values, *slots, *notes;
    TF_RETURN_IF_ERROR(
        context->allocate_output(1, TensorShape({n, layout.dim}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(
        2, TensorShape({n, layout.slot_words()}), &slots));
    TF_RETURN_IF_ERROR(
        context->allocate_output(3, TensorShape({has_notes ? n : 0}), &notes));
    auto key_to = keys->Allocate(context, 0, n);
    if (!key_to.ok()) return key_to.status();
    char* value_to = static_cast<char*>(values->data());
    float* slot_to = slots->flat<float>().data();
    int64_t* note_to = notes->flat<int64_t>().data();
    return frozen.Visit(
        kChunk, [&](absl::Span<const int64_t> chunk, const float* row) {
          *key_to = std::copy(chunk.begin(), chunk.end(), *key_to);
          for (size_t i = 0; i < chunk.size(); ++i, row += layout.width()) {
            CopyBytes(row, value_to, layout.value_bytes());
            value_to += layout.value_bytes();
            slot_to = std::copy(row + layout.slots_begin(),
                                row + layout.meta_begin(), slot_to);
            if (has_notes) *note_to++ = frozen.Note(row);
          }
          return absl::OkStatus();
        });
  }

  static absl::Status CopyWaiting(OpKernelContext* context,
                                  const EmbeddingTable::Snapshot& frozen,
                                  KeyOutput* keys) {
    const int64_t n = frozen.num_waiting();
    Tensor* seen;
    TF_RETURN_IF_ERROR(context->allocate_output(5, TensorShape({n}), &seen));
    auto key_to = keys->Allocate(context, 4, n);
    if (!key_to.ok()) return key_to.status();
    int32_t* seen_to = seen->flat<int32_t>().data();
    return frozen.VisitWaiting(kChunk, [&](absl::Span<const int64_t> chunk,
                                           absl::Span<const int32_t> times) {
      *key_to = std::copy(chunk.begin(), chunk.end(), *key_to);
      seen_to = std::copy(times.begin(), times.end(), seen_to);
      return absl::OkStatus();
    });
  }

  static absl::Status CopyCounters(OpKernelContext* context,
                                   const EmbeddingTable& table,
                                   const EmbeddingTable::Snapshot& frozen) {
    const auto shape = table.counters_shape();
    Tensor* counters;
    TF_RETURN_IF_ERROR(context->allocate_output(
        6, TensorShape({shape.num_blocks, shape.block_bytes}), &counters));
    uint8_t* to = counters->flat<uint8_t>().data();
    for (int64_t block = 0; block < shape.num_blocks; ++block) {
      const absl::Span<const uint8_t> from = frozen.counters(block);
      to = std::copy(from.begin(), from.end(), to);
    }
    return absl::OkStatus();
  }
};

class TableImportNotesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &notes = context->input(2);
    OP_REQUIRES(context, notes.dims() == 1 && notes.shape() == keys.shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`keys` and `notes` must be vectors of one length; got ",
                    keys.shape().DebugString(), " and ",
                    notes.shape().DebugString(), ".")));
    tstring kind;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "kind", &kind));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context,
                   batch.Read(*table, keys, NewKeys::kIgnore, &executor));
    if (absl::string_view(kind) != table->table()->notes()) return;
    constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
    std::vector<uint32_t> words;
    for (int64_t i = 0; i < notes.NumElements(); ++i) {
      words.push_back(static_cast<uint32_t>(
          std::clamp<int64_t>(notes.flat<int64_t>()(i), 0, kMost)));
    }
    OP_REQUIRES_OK(context, NameTable(*table, table->table()->ImportNotes(
                                                  batch.span(), words)));
  }
};

class TableImportCountersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor& counters = context->input(1);
    tstring kind;
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "kind", &kind));
    const auto own = table->table()->counters_shape();
    if (absl::string_view(kind) != own.kind ||
        counters.shape() != TensorShape({own.num_blocks, own.block_bytes})) {
      return;
    }
    const uint8_t* from = counters.flat<uint8_t>().data();
    for (int64_t block = 0; block < own.num_blocks; ++block) {
      table->table()->ImportCounters(
          block, {from, static_cast<size_t>(own.block_bytes)});
      from += own.block_bytes;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableSnapshot").Device(DEVICE_CPU),
                        TableSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableImportNotes").Device(DEVICE_CPU),
                        TableImportNotesOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableImportCounters").Device(DEVICE_CPU),
                        TableImportCountersOp);

}  // namespace
}  // namespace tfembed
