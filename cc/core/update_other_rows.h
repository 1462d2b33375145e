#ifndef TFEMBED_CORE_UPDATE_OTHER_ROWS_H_
#define TFEMBED_CORE_UPDATE_OTHER_ROWS_H_

#include <cstdint>
#include <vector>

#include "cc/core/grouped_update.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// Applies the table's rule with a gradient of 0 to all rows that the table has
// but those of `touched`, distinct ids in any order.
void UpdateOtherRows(const TableUpdate& table, std::vector<int64_t> touched,
                     Executor* executor);

}  // namespace tfembed

#endif  // TFEMBED_CORE_UPDATE_OTHER_ROWS_H_
