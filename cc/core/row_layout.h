#ifndef TFEMBED_CORE_ROW_LAYOUT_H_
#define TFEMBED_CORE_ROW_LAYOUT_H_

#include <cstdint>

#include "cc/core/value_type.h"

namespace tfembed {

// How a row lies in memory, in words of 4 bytes:
//
//   +---------------------------+-------------------+------+
//   | value                     | slots             | meta |
//   | dim numbers of `type`,    | num_slots x dim   |      |
//   | padded to a whole word    | floats            |      |
//   +---------------------------+-------------------+------+
//   0                           slots_begin()       meta_begin()   width()
//
// Meta words belong to whoever asked for them; a new row has zeros there.
struct RowLayout {
  int64_t dim = 0;
  ValueType type;
  int64_t num_slots = 0;
  int64_t meta_words = 0;

  static constexpr int64_t kWordBytes = 4;

  int64_t value_bytes() const { return dim * type.size(); }
  int64_t slots_begin() const {
    return (value_bytes() + kWordBytes - 1) / kWordBytes;
  }
  int64_t slot_begin(int64_t slot) const { return slots_begin() + slot * dim; }
  int64_t meta_begin() const { return slot_begin(num_slots); }
  int64_t width() const { return meta_begin() + meta_words; }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROW_LAYOUT_H_
