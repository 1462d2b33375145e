// Kernels of the ops on what a table shard's policies keep, and on its use.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TableEvictOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    table->table()->Evict(keys.span(), &executor);
    keys.ForgetStrings(*table->table());
  }
};

class TableWorthOp : public OpKernel {
 public:
  explicit TableWorthOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("policy", &policy_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context,
                   CheckKeyDtype(*table, context->expected_output_dtype(0)));
    KeyOutput keys({table->table()});
    const auto allocate =
        [&](int64_t n) -> absl::StatusOr<EmbeddingTable::WorthBuffers> {
      Tensor* worth;
      TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({n}), &worth));
      auto to = keys.Allocate(context, 0, {n});
      if (!to.ok()) return to.status();
      return EmbeddingTable::WorthBuffers{*to, worth->flat<double>().data()};
    };
    TfExecutor executor(context);
    const absl::Status status =
        table->table()->ExportWorth(policy_, allocate, &executor);
    OP_REQUIRES_OK(context, NameTable(*table, status));
    keys.Finish();
  }

 private:
  std::string policy_;
};

class TableImportWaitingOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor& seen = context->input(2);
    OP_REQUIRES(context,
                seen.dims() == 1 && seen.shape() == context->input(1).shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`keys` and `seen` must be vectors of one length; got ",
                    context->input(1).shape().DebugString(), " and ",
                    seen.shape().DebugString(), ".")));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1), NewKeys::kAdd,
                                      &executor));
    const absl::Status status = table->table()->ImportWaiting(
        keys.span(),
        {seen.flat<int32_t>().data(), static_cast<size_t>(seen.NumElements())});
    keys.ForgetStrays(*table->table());
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }
};

class TableUseOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const TableUse use = table->table()->use();
    const int64_t counts[] = {use.hits,         use.misses,     use.admitted,
                              use.refused,      use.evicted,    use.nan_rows,
                              use.value_bytes,  use.slot_bytes, use.meta_bytes,
                              use.policy_bytes, use.places,     use.probes,
                              use.longest_probe};
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({std::size(counts)}), &output));
    std::copy(std::begin(counts), std::end(counts),
              output->flat<int64_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableEvict").Device(DEVICE_CPU),
                        TableEvictOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableWorth").Device(DEVICE_CPU),
                        TableWorthOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableImportWaiting").Device(DEVICE_CPU),
                        TableImportWaitingOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableUse").Device(DEVICE_CPU),
                        TableUseOp);

}  // namespace
}  // namespace tfembed
