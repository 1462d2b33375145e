// Kernels of the ops that read and write rows of a table by key.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/embedding_table.h"
#include "cc/kernels/table_resource.h"
#include "cc/kernels/tf_executor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Span<const int64_t> Keys(const Tensor& keys) {
  return {keys.flat<int64_t>().data(), static_cast<size_t>(keys.NumElements())};
}

// Refuses an input that has not the shape [keys..., width].
absl::Status CheckRows(const TableResource& table, const Tensor& keys,
                       int64_t width, const Tensor& rows) {
  TensorShape expected = keys.shape();
  TF_RETURN_IF_ERROR(expected.AddDimWithStatus(width));
  if (rows.shape() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Expected shape ", expected.DebugString(), " for value, got ",
      rows.shape().DebugString(), ", in table '", table.name(), "'"));
}

class TableLookupOp : public OpKernel {
 public:
  explicit TableLookupOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES(context, table->table()->dim() == dim_,
                absl::InvalidArgumentError(absl::StrCat(
                    "The rows of table '", table->name(), "' have dim ",
                    table->table()->dim(), "; got dim ", dim_, ".")));
    const Tensor& keys = context->input(1);
    TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor *values, *exists;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, keys.shape(), &exists));
    TfExecutor executor(context);
    table->table()->Lookup(Keys(keys), values->flat<float>().data(),
                           exists->flat<bool>().data(), &executor);
  }

 private:
  int64_t dim_ = 0;
};

class TableUpsertOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &values = context->input(2);
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    TfExecutor executor(context);
    OP_REQUIRES_OK(
        context, table->table()->Upsert(Keys(keys), values.flat<float>().data(),
                                        &executor));
  }
};

class TableAccumOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &values = context->input(2),
                 &exists = context->input(3);
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    OP_REQUIRES(
        context, exists.shape() == keys.shape(),
        absl::InvalidArgumentError(absl::StrCat(
            "Expected shape ", keys.shape().DebugString(), " for exists, got ",
            exists.shape().DebugString(), ", in table '", table->name(), "'")));
    TfExecutor executor(context);
    OP_REQUIRES_OK(
        context, table->table()->Accum(Keys(keys), values.flat<float>().data(),
                                       exists.flat<bool>().data(), &executor));
  }
};

class TableRemoveOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    table->table()->Remove(Keys(context->input(1)), &executor);
  }
};

class TableImportOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &rows = context->input(2);
    OP_REQUIRES(context, keys.dims() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("`keys` must be a vector; got shape ",
                                 keys.shape().DebugString(), ".")));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->full_width(), rows));
    TfExecutor executor(context);
    OP_REQUIRES_OK(context,
                   table->table()->Import(Keys(keys), rows.flat<float>().data(),
                                          &executor));
  }
};

class TableExportOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context, Export(context, *table->table()));
  }

 private:
  static absl::Status Export(OpKernelContext* context,
                             const EmbeddingTable& table) {
    const int64_t dim = table.dim(), width = table.full_width();
    Tensor *keys, *values, *slots;
    Tensor full_rows;
    TfExecutor executor(context);
    const auto allocate =
        [&](int64_t n) -> absl::StatusOr<EmbeddingTable::ExportBuffers> {
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n}), &keys));
      TF_RETURN_IF_ERROR(
          context->allocate_output(1, TensorShape({n, dim}), &values));
      TF_RETURN_IF_ERROR(
          context->allocate_output(2, TensorShape({n, width - dim}), &slots));
      full_rows = *values;
      if (width != dim) {
        TF_RETURN_IF_ERROR(context->allocate_temp(
            tensorflow::DT_FLOAT, TensorShape({n, width}), &full_rows));
      }
      return EmbeddingTable::ExportBuffers{keys->flat<int64_t>().data(),
                                           full_rows.flat<float>().data()};
    };
    TF_RETURN_IF_ERROR(table.Export(allocate, &executor));
    if (width != dim) Split(full_rows, values, slots);
    return absl::OkStatus();
  }

  // Deals full rows out to values and slots.
  static void Split(const Tensor& full_rows, Tensor* values, Tensor* slots) {
    const int64_t dim = values->dim_size(1), width = full_rows.dim_size(1);
    const float* row = full_rows.flat<float>().data();
    float* value = values->flat<float>().data();
    float* slot = slots->flat<float>().data();
    for (int64_t i = 0; i < full_rows.dim_size(0); ++i, row += width) {
      value = std::copy(row, row + dim, value);
      slot = std::copy(row + dim, row + width, slot);
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableLookup").Device(DEVICE_CPU),
                        TableLookupOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableUpsert").Device(DEVICE_CPU),
                        TableUpsertOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableAccum").Device(DEVICE_CPU),
                        TableAccumOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableRemove").Device(DEVICE_CPU),
                        TableRemoveOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableImport").Device(DEVICE_CPU),
                        TableImportOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableExport").Device(DEVICE_CPU),
                        TableExportOp);

}  // namespace
}  // namespace tfembed
