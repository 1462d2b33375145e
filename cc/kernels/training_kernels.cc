// Kernels of the ops by which update rules outside of the core move rows.
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

class TableLookupTrainedOp : public OpKernel {
 public:
  explicit TableLookupTrainedOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("width", &width_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckTrainable(*table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    TensorShape shape = context->input(1).shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(width_));
    Tensor* rows;
    OP_REQUIRES_OK(context, AllocateRows(context, 0, shape, &rows));
    OP_REQUIRES_OK(context, table->table()->LookupTrained(
                                keys.span(), width_, rows->flat<float>().data(),
                                &executor));
  }

 private:
  int64_t width_ = 0;
};

class TableWriteTrainedOp : public OpKernel {
 public:
  explicit TableWriteTrainedOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("add", &add_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &rows = context->input(2);
    const int64_t width = table->table()->trained_width();
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, width, rows, "value and slots"));
    OP_REQUIRES_OK(context, CheckTrainable(*table));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(context, table->table()->WriteTrained(
                                batch.span(), width, rows.flat<float>().data(),
                                add_, &executor));
    batch.ForgetStrays(*table->table());
  }

 private:
  bool add_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableLookupTrained").Device(DEVICE_CPU),
                        TableLookupTrainedOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableWriteTrained").Device(DEVICE_CPU),
                        TableWriteTrainedOp);

}  // namespace
}  // namespace tfembed
