#ifndef TFEMBED_CORE_NONFINITE_SUMS_H_
#define TFEMBED_CORE_NONFINITE_SUMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/core/rows.h"
#include "cc/core/table_gradients.h"

namespace tfembed {

// Takes the sums with a NaN or an infinity, and their ids, out of a block of
// rows of `dim` floats; returns how many.
int64_t DropNonFinite(int64_t dim, SumBlock* block);

// InvalidArgument where a reader has such a sum, naming its id and its table,
// by number.
absl::Status RefuseNonFinite(int64_t table, const RowSink& sink,
                             SumReader* reader);

}  // namespace tfembed

#endif  // TFEMBED_CORE_NONFINITE_SUMS_H_
