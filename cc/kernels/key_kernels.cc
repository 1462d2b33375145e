// Kernels of the ops that look at the keys of a table shard and at no row.
#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cc/core/embedding_table.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/table_dtypes.h"
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
    OP_REQUIRES_OK(context,
                   CheckKeyDtype(*table, context->expected_output_dtype(0)));
    OP_REQUIRES_OK(context, Export(context, *table->table()));
  }

 private:
  static absl::Status Export(OpKernelContext* context,
                             const EmbeddingTable& table) {
    Tensor* keys;
    Tensor wide;  // Where the output is narrower than the core's keys.
    const auto allocate = [&](int64_t n) -> absl::StatusOr<int64_t*> {
      const TensorShape shape({n});
      TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &keys));
      wide = *keys;
      if (keys->dtype() != tensorflow::DT_INT64) {
        TF_RETURN_IF_ERROR(
            context->allocate_temp(tensorflow::DT_INT64, shape, &wide));
      }
      return wide.flat<int64_t>().data();
    };
    TfExecutor executor(context);
    TF_RETURN_IF_ERROR(table.ExportKeys(allocate, &executor));
    if (keys->dtype() == tensorflow::DT_INT32) {
      std::copy_n(wide.flat<int64_t>().data(), wide.NumElements(),
                  keys->flat<int32_t>().data());
    }
    return absl::OkStatus();
  }
};

class TableContainsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1)));
    Tensor* exists;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, context->input(1).shape(), &exists));
    TfExecutor executor(context);
    table->table()->Contains(keys.span(), exists->flat<bool>().data(),
                             &executor);
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableKeys").Device(DEVICE_CPU),
                        TableKeysOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableContains").Device(DEVICE_CPU),
                        TableContainsOp);

}  // namespace
}  // namespace tfembed
