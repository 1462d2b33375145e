#include <algorithm>
#include <memory>
#include <vector>

#include "cc/core/grouped_update.h"
#include "cc/core/step_tasks.h"
#include "cc/core/table_gradients.h"

namespace tfembed {
namespace {

// Copies a task's sums to their places.
void CopySums(SumReader* reader, int64_t dim, int64_t* ids, float* rows) {
  SumBlock block;
  while (reader->Next(&block, {})) {
    std::copy_n(block.ids.begin(), block.n, ids);
    std::copy_n(block.sums.begin(), block.n * dim, rows);
    ids += block.n;
    rows += block.n * dim;
  }
}

}  // namespace

absl::StatusOr<SummedGradients> SumGradients(
    absl::Span<const BagGradients> features, int64_t dim, Executor* executor) {
  const int64_t num_ids = NumIds(features);
  if (num_ids * dim < kSerialFloats) executor = nullptr;
  TableGradients::Options options;
  options.features = features;
  options.dim = dim;
  options.ids = RangeOfIds(features);
  options.max_tasks = TasksOfTable(num_ids, num_ids, executor);
  options.keeps_sorted = true;
  const auto owner = TableGradients::Create(options);
  if (!owner.ok()) return owner.status();
  TableGradients& gradients = **owner;
  ParallelFor(executor, gradients.num_ranges(), [&](int64_t range) {
    gradients.Collect(range).IgnoreError();  // Without a sink all ids are good.
  });
  gradients.Deal();
  ParallelFor(executor, gradients.num_tasks(),
              [&](int64_t task) { gradients.Sort(task); });
  std::vector<int64_t> starts = {0};
  for (int64_t task = 0; task < gradients.num_tasks(); ++task) {
    starts.push_back(starts.back() + gradients.PartSizes(task)[0].ids);
  }
  SummedGradients result;
  result.ids.resize(starts.back());
  result.rows.resize(starts.back() * dim);
  ParallelFor(executor, gradients.num_tasks(), [&](int64_t task) {
    CopySums(gradients.Read(task).get(), dim, result.ids.data() + starts[task],
             result.rows.data() + starts[task] * dim);
  });
  return result;
}

}  // namespace tfembed
