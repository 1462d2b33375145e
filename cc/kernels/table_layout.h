#ifndef TFEMBED_KERNELS_TABLE_LAYOUT_H_
#define TFEMBED_KERNELS_TABLE_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {

// The description of a table in a checkpoint, beside its rows: text with one
// field a line (docs/formats/hash_table.md):
//
//   tfembed.hash_table 1
//   dim 8
//   keys int32              (only where they are not int64)
//   values float16          (only where they are not float32)
//   seed -42
//   rule adagrad            (only where slots were laid out)
//   slot accumulators 0.1   (one line a slot: name, initial value; row_slot
//                            where it is one float a row)
//   notes steps_ago         (only where an eviction policy notes something)
struct TableLayout {
  // The longest text: slot names are attributes of Python objects.
  static constexpr int64_t kMostBytes = 1 << 20;

  int64_t dim = 0;
  KeyKind keys = KeyKind::kInt64;
  ValueType values;
  uint64_t seed = 0;
  SlotLayout slots;
  std::string notes;

  std::string ToText() const;

  // InvalidArgument: another format or version, a field that occurs twice, a
  // word that cannot be shown. The message says what was found.
  static absl::StatusOr<TableLayout> Parse(absl::string_view text);
};

// The names of a table's tensors in a checkpoint, `name` being its prefix.
std::string LayoutTensor(absl::string_view name);
// The table's name in programs is in this one; no restore reads it.
std::string TableNameTensor(absl::string_view name);
std::string KeysTensor(absl::string_view name);
std::string ValuesTensor(absl::string_view name);
std::string SlotTensor(absl::string_view name, absl::string_view slot);
std::string NotesTensor(absl::string_view name);

// Keys that wait for admission, and in how many steps each was seen; only where
// there are some.
std::string WaitingKeysTensor(absl::string_view name);
std::string WaitingSeenTensor(absl::string_view name);

// Counters of a kind that all keys share; see EmbeddingTable::CountersShape.
std::string WaitingCountersTensor(absl::string_view name,
                                  absl::string_view kind);

// Written by a process that has nothing else to write of a checkpoint.
std::string PartTensor(absl::string_view name, int64_t number);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_LAYOUT_H_
