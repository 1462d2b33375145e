#ifndef TFEMBED_CORE_NONFINITE_SUMS_H_
#define TFEMBED_CORE_NONFINITE_SUMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/rows.h"
#include "cc/core/table_gradients.h"

namespace tfembed {

// Takes the sums with a NaN or an infinity, and their ids, out of a block of
// rows of `dim` floats; returns how many.
int64_t DropNonFinite(int64_t dim, SumBlock* block);

// InvalidArgument where a reader has such a sum, naming its id and `table`.
absl::Status RefuseNonFinite(absl::string_view table, const RowSink& sink,
                             SumReader* reader);

}  // namespace tfembed

#endif  // TFEMBED_CORE_NONFINITE_SUMS_H_
