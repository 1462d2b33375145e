// Kernels of the ops that read and write rows of a table by key.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/embedding_table.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/pooled_output.h"
#include "cc/kernels/table_dtypes.h"
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
    OP_REQUIRES_OK(context,
                   CheckValueDtype(*table, context->expected_output_dtype(0)));
    TfExecutor executor(context);
    KeysToFind keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1)));
    const TensorShape& key_shape = context->input(1).shape();
    TensorShape shape = key_shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor *values, *exists;
    OP_REQUIRES_OK(context, AllocateRows(context, 0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, key_shape, &exists));
    table->table()->LookupFrom(&keys, values->data(),
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
    OP_REQUIRES_OK(context, CheckValueDtype(*table, values.dtype()));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(context, table->table()->Upsert(batch.span(), values.data(),
                                                   &executor));
    batch.ForgetStrays(*table->table());
  }
};

class TableAccumOp : public OpKernel {
 public:
  explicit TableAccumOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES(construction, construction->num_inputs() <= kOldValues + 1,
                absl::InvalidArgumentError("At most one tensor of old_values"));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &values = context->input(2),
                 &exists = context->input(3);
    OP_REQUIRES_OK(context, CheckValueDtype(*table, values.dtype()));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    OP_REQUIRES(
        context, exists.shape() == keys.shape(),
        absl::InvalidArgumentError(absl::StrCat(
            "Expected shape ", keys.shape().DebugString(), " for exists, got ",
            exists.shape().DebugString(), ", in table '", table->name(), "'")));
    const void* old_values = nullptr;
    if (context->num_inputs() > kOldValues) {
      const Tensor& old = context->input(kOldValues);
      OP_REQUIRES_OK(context, CheckRows(*table, keys, table->table()->dim(),
                                        old, "old_values"));
      old_values = old.data();
    }
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(
        context, table->table()->Accum(batch.span(), values.data(), old_values,
                                       exists.flat<bool>().data(), &executor));
    batch.ForgetStrays(*table->table());
  }

 private:
  static constexpr int kOldValues = 4;  // An input that may be left out.
};

class TableRemoveOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    table->table()->Remove(keys.span(), &executor);
    keys.ForgetStrings(*table->table());
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
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(
        context, table->table()->Import(batch.span(), rows.dim_size(1),
                                        rows.flat<float>().data(), &executor));
    batch.ForgetStrays(*table->table());
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

}  // namespace
}  // namespace tfembed
