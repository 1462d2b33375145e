#ifndef TFEMBED_CORE_TABLE_STATIC_TABLE_H_
#define TFEMBED_CORE_TABLE_STATIC_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/rows/rows.h"

namespace tfembed {

// A table with a fixed vocabulary in borrowed memory (a tf.Variable):
// `num_rows` rows of `dim` floats, and one array per slot, of the same shape
// or, for a row-wise slot, of one float per row. The caller locks the memory.
struct StaticTable {
  std::string name;  // For error messages.
  float* values = nullptr;
  float* slots[kMaxSlots] = {};
  int num_slots = 0;
  SlotSet row_wise = 0;
  int64_t num_rows = 0;
  int64_t dim = 0;
};

// Makes a source; Locate and Check return InvalidArgument for ids outside of
// [0, num_rows).
std::unique_ptr<RowSource> ReadStaticTable(const StaticTable& table);
std::unique_ptr<RowSink> WriteStaticTable(const StaticTable& table);

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_STATIC_TABLE_H_
