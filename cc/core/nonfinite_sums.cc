#include "cc/core/nonfinite_sums.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cc/core/simd/dispatch.h"

namespace tfembed {

int64_t DropNonFinite(int64_t dim, SumBlock* block) {
  const Kernels& kernels = ActiveKernels();
  float* sums = block->sums.data();
  if (kernels.all_finite(sums, block->n * dim)) return 0;
  int64_t kept = 0;
  for (int64_t i = 0; i < block->n; ++i) {
    if (!kernels.all_finite(sums + i * dim, dim)) continue;
    block->ids[kept] = block->ids[i];
    std::copy_n(sums + i * dim, dim, sums + kept * dim);
    ++kept;
  }
  const int64_t dropped = block->n - kept;
  block->n = kept;
  return dropped;
}

absl::Status RefuseNonFinite(absl::string_view table, const RowSink& sink,
                             SumReader* reader) {
  const Kernels& kernels = ActiveKernels();
  const int64_t dim = sink.dim();
  SumBlock block;
  while (reader->Next(&block, {})) {
    for (int64_t i = 0; i < block.n; ++i) {
      if (kernels.all_finite(block.sums.data() + i * dim, dim)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("The summed gradient of id ", sink.NameOf(block.ids[i]),
                       " of ", table,
                       " has a NaN or an infinity; nothing was changed. Skip "
                       "such rows with nonfinite=\"skip\", or find where "
                       "they come from."));
    }
  }
  return absl::OkStatus();
}

}  // namespace tfembed
