// Kernels that replace all that a table holds.
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc/core/whole_tables.h"
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

// The first `n` inputs.
absl::Status FindTables(OpKernelContext* context, int n,
                        std::vector<TablePtr>* tables) {
  for (int i = 0; i < n; ++i) {
    TF_RETURN_IF_ERROR(FindTable(context, i, &tables->emplace_back()));
  }
  return absl::OkStatus();
}

// While they are locked exports and saves wait.
ReplacedTables Replace(const std::vector<TablePtr>& owners) {
  std::vector<const EmbeddingTable*> tables;
  for (const TablePtr& owner : owners) tables.push_back(owner->table());
  return LockWhole<ReplacedTables::value_type>(tables);
}

class TableClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<TablePtr> tables;
    OP_REQUIRES_OK(context,
                   FindTables(context, context->num_inputs(), &tables));
    const ReplacedTables replaced = Replace(tables);
    for (const TablePtr& table : tables) table->table()->Clear();
  }
};

class TableReplaceOp : public OpKernel {
 public:
  explicit TableReplaceOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &num_tables_));
    OP_REQUIRES_OK(construction, construction->GetAttr("trained", &trained_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TablePtr> tables;
    OP_REQUIRES_OK(context, FindTables(context, num_tables_, &tables));
    for (int i = 0; i < num_tables_; ++i) {
      OP_REQUIRES_OK(context,
                     Check(*tables[i], Keys(context, i), Rows(context, i)));
    }
    TfExecutor executor(context);
    const ReplacedTables replaced = Replace(tables);
    for (int i = 0; i < num_tables_; ++i) {
      OP_REQUIRES_OK(context, Fill(*tables[i], Keys(context, i),
                                   Rows(context, i), &executor));
    }
  }

 private:
  const Tensor& Keys(OpKernelContext* context, int i) const {
    return context->input(num_tables_ + i);
  }
  const Tensor& Rows(OpKernelContext* context, int i) const {
    return context->input(2 * num_tables_ + i);
  }

  absl::Status Check(const TableResource& resource, const Tensor& keys,
                     const Tensor& rows) const {
    const EmbeddingTable& table = *resource.table();
    if (trained_) {
      TF_RETURN_IF_ERROR(CheckTrainable(resource));
      if (rows.dtype() != tensorflow::DT_FLOAT) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Trained rows must be float, in table '", resource.name(), "'"));
      }
    } else {
      TF_RETURN_IF_ERROR(CheckValueDtype(resource, rows.dtype()));
    }
    TF_RETURN_IF_ERROR(CheckKeyDtype(resource, keys.dtype()));
    const int64_t width = trained_ ? table.trained_width() : table.dim();
    TF_RETURN_IF_ERROR(CheckRows(resource, keys, width, rows, "rows"));
    return CheckBound(resource, keys);
  }

  // Once the table is cleared it is too late.
  absl::Status CheckBound(const TableResource& resource,
                          const Tensor& keys) const {
    const int64_t bound = resource.table()->max_size();
    if (bound == 0 || keys.NumElements() <= bound) return absl::OkStatus();
    int64_t distinct = 0;
    if (keys.dtype() == tensorflow::DT_STRING) {
      distinct = CountDistinct<tensorflow::tstring, absl::string_view>(keys);
    } else if (keys.dtype() == tensorflow::DT_INT32) {
      distinct = CountDistinct<int32_t, int32_t>(keys);
    } else {
      distinct = CountDistinct<int64_t, int64_t>(keys);
    }
    if (distinct <= bound) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "Table '", resource.name(), "' holds at most ", bound, " keys; got ",
        distinct, " distinct ones. Nothing was changed."));
  }

  template <typename Key, typename Seen>
  static int64_t CountDistinct(const Tensor& keys) {
    const auto all = keys.flat<Key>();
    return absl::flat_hash_set<Seen>(all.data(), all.data() + all.size())
        .size();
  }

  absl::Status Fill(const TableResource& resource, const Tensor& keys,
                    const Tensor& rows, Executor* executor) const {
    EmbeddingTable* const table = resource.table();
    table->Clear();
    KeyBatch batch;
    TF_RETURN_IF_ERROR(batch.Read(resource, keys, NewKeys::kAdd, executor));
    if (!trained_) return table->Upsert(batch.span(), rows.data(), executor);
    return table->WriteTrained(batch.span(), table->trained_width(),
                               rows.flat<float>().data(), /*add=*/false,
                               executor);
  }

  int num_tables_ = 0;
  bool trained_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableClear").Device(DEVICE_CPU),
                        TableClearOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableReplace").Device(DEVICE_CPU),
                        TableReplaceOp);

}  // namespace
}  // namespace tfembed
