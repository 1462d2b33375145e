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
    KeyOutput keys({&table});
    const auto allocate = [&](int64_t n) {
      return keys.Allocate(context, 0, {n});
    };
    TfExecutor executor(context);
    TF_RETURN_IF_ERROR(table.ExportKeys(allocate, &executor));
    keys.Finish();
    return absl::OkStatus();
  }
};

class TableContainsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    Tensor* exists;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, context->input(1).shape(), &exists));
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
