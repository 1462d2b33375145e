// Kernels of the ops that look into one shard of a table: some of its rows, its
// counts, and its rows of the highest worth.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Reads input 1, a number of rows.
absl::Status ReadRows(OpKernelContext* context, const char* name,
                      int64_t* rows) {
  TF_RETURN_IF_ERROR(ReadScalar(context, 1, name, rows));
  if (*rows >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must not be negative; got ", *rows, "."));
}

template <typename T, typename From>
absl::Status Output(OpKernelContext* context, int output, const From& numbers) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(
      output, TensorShape({static_cast<int64_t>(std::size(numbers))}),
      &tensor));
  std::copy(std::begin(numbers), std::end(numbers), tensor->flat<T>().data());
  return absl::OkStatus();
}

class TableSurveyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTableOfKeys(context, 0, &table));
    int64_t rows;
    OP_REQUIRES_OK(context, ReadRows(context, "rows", &rows));
    KeyOutput keys({table->table()});
    TfExecutor executor(context);
    const auto survey = table->table()->SurveyRows(rows, &executor);
    const int64_t n = static_cast<int64_t>(survey.keys.size());
    auto to = keys.Allocate(context, 0, {n});
    OP_REQUIRES_OK(context, to.status());
    std::copy_n(survey.keys.data(), n, *to);
    OP_REQUIRES_OK(context, Output<double>(context, 1, survey.norms));
    OP_REQUIRES_OK(context, Output<double>(context, 2, survey.worth));
    OP_REQUIRES_OK(context, Output<bool>(context, 3, survey.trained));
    const TableStats stats = table->table()->stats();
    const TableUse& use = survey.use;
    const int64_t counts[] = {
        survey.size,       stats.capacity,   stats.index_bytes, stats.row_bytes,
        use.hits,          use.misses,       use.admitted,      use.refused,
        use.evicted,       use.nan_rows,     use.value_bytes,   use.slot_bytes,
        use.meta_bytes,    use.policy_bytes, use.places,        use.probes,
        use.longest_probe, survey.waiting};
    OP_REQUIRES_OK(context, Output<int64_t>(context, 4, counts));
    keys.Finish();
  }
};

class TableTopOp : public OpKernel {
 public:
  explicit TableTopOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("policy", &policy_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTableOfKeys(context, 0, &table));
    int64_t most;
    OP_REQUIRES_OK(context, ReadRows(context, "most", &most));
    KeyOutput keys({table->table()});
    TfExecutor executor(context);
    const auto top = table->table()->FindTop(policy_, most, &executor);
    OP_REQUIRES_OK(context, NameTable(*table, top.status()));
    auto to = keys.Allocate(context, 0, {static_cast<int64_t>(top->size())});
    OP_REQUIRES_OK(context, to.status());
    std::vector<double> worth;
    for (const auto& row : *top) {
      *(*to)++ = row.key;
      worth.push_back(row.worth);
    }
    OP_REQUIRES_OK(context, Output<double>(context, 1, worth));
    keys.Finish();
  }

 private:
  std::string policy_;
};

TFEMBED_KERNEL(TableSurvey, TableSurveyOp);
TFEMBED_KERNEL(TableTop, TableTopOp);

}  // namespace

}  // namespace tfembed
