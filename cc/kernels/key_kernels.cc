// Kernels of the ops that look at the keys of a table shard and at no row.
#include <cstdint>

#include "absl/status/statusor.h"
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
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TableKeysOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const auto allocate = [context](int64_t n) -> absl::StatusOr<int64_t*> {
      Tensor* keys;
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n}), &keys));
      return keys->flat<int64_t>().data();
    };
    TfExecutor executor(context);
    OP_REQUIRES_OK(context, table->table()->ExportKeys(allocate, &executor));
  }
};

class TableContainsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor& keys = context->input(1);
    Tensor* exists;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &exists));
    TfExecutor executor(context);
    table->table()->Contains(
        {keys.flat<int64_t>().data(), static_cast<size_t>(keys.NumElements())},
        exists->flat<bool>().data(), &executor);
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableKeys").Device(DEVICE_CPU),
                        TableKeysOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableContains").Device(DEVICE_CPU),
                        TableContainsOp);

}  // namespace
}  // namespace tfembed
