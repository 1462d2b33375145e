#ifndef TFEMBED_CORE_TABLE_ROW_WRITES_H_
#define TFEMBED_CORE_TABLE_ROW_WRITES_H_

#include <cstdint>

#include "cc/core/rows/value_type.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {

// The rows of a batch, and how they are written. Borrows the rows.
struct EmbeddingTable::RowWrites {
  enum class Kind { kUpsert, kAccum, kTrained, kAddTrained, kImport };

  Kind kind;
  const void* rows;
  int64_t bytes;                     // A row's: value; trained row; full row.
  const bool* exists = nullptr;      // kAccum's.
  const void* old_rows = nullptr;    // kAccum's: what to subtract from `rows`.
  const SlotLayout* rule = nullptr;  // Of trained rows: TrainedForm's.
  Moment now = {};
  RowRounding rounding = RowRounding(ValueType());
  float* scratch = nullptr;  // Room for two rows, where NeedsScratch.
  bool streams = false;  // New rows go past the caches; see WriteBlock, too.

  const char* row(int64_t position) const {
    return static_cast<const char*>(rows) + position * bytes;
  }

  const char* old_row(int64_t position) const {
    return static_cast<const char*>(old_rows) + position * bytes;
  }

  // Whether sums are computed in floats beside the row.
  bool NeedsScratch(const ValueType& type) const {
    return (kind == Kind::kAccum && rounding.by_chance()) ||
           (kind == Kind::kAddTrained && !type.is_float32());
  }

  bool is_trained() const {
    return kind == Kind::kTrained || kind == Kind::kAddTrained;
  }

  // Whether the key at `position`, if it is not there, is to be inserted.
  bool Inserts(uint32_t position) const {
    return kind != Kind::kAccum || !exists[position];
  }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_ROW_WRITES_H_
