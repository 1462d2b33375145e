#ifndef TFEMBED_CORE_POLICIES_EVICTION_H_
#define TFEMBED_CORE_POLICIES_EVICTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// When a batch of writes happens.
struct Moment {
  uint32_t step = 0;    // Batches that were written to the table so far.
  uint32_t second = 0;  // Since 1970.
};

// A row that is judged.
struct JudgedRow {
  const void* value = nullptr;  // `dim` numbers of `type`.
  ValueType type;
  int64_t dim = 0;
  uint32_t word = 0;  // The policy's; 0 where there is none.
};

// Decides what a table notes about each row, in a word behind the row, and
// which rows go first when some have to. Immutable.
class EvictionPolicy {
 public:
  // From one of these texts. InvalidArgument names the word.
  //
  // "least_frequent": the rows that were written least often go first.
  // "least_recent seconds=0": the rows that were not written for the longest
  //     time go first, in steps, or with seconds=1 in seconds.
  // "smallest_norm": the rows of the smallest Euclidean norm go first.
  static absl::StatusOr<std::unique_ptr<EvictionPolicy>> Parse(
      absl::string_view text);

  virtual ~EvictionPolicy() = default;

  // Words that it notes in each row, 0 or 1; they begin as 0.
  virtual int meta_words() const = 0;

  // Whether Touch counts, so that a batch must touch each row once. Else it may
  // come any number of times.
  virtual bool counts() const = 0;

  // The word of a row that is written now. Not called where there is none.
  virtual uint32_t Touch(uint32_t word, const Moment& now) const = 0;

  // Names the content of the word in checkpoints; "" where nothing is noted. A
  // restored table takes the words where its policy has the same name.
  virtual absl::string_view notes() const = 0;

  // The word as it is saved, which another table's clock can read, and the word
  // of that saved one. Restored(0, now) is that of a row that is new.
  virtual uint32_t Saved(uint32_t word, const Moment& now) const = 0;
  virtual uint32_t Restored(uint32_t saved, const Moment& now) const = 0;

  // Rows of the lowest worth go first.
  virtual double Worth(const JudgedRow& row, const Moment& now) const = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_EVICTION_H_
