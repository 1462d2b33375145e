#ifndef TFEMBED_CORE_ROWS_ROWS_H_
#define TFEMBED_CORE_ROWS_ROWS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cc/core/rows/row_addresses.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// Where the rows of one table are read. Thread-safe; holds whatever locks keep
// the addresses valid for as long as it lives.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Numbers per row.
  virtual int64_t dim() const = 0;

  // The rows' dtype: float, or another that converts to float.
  virtual ValueType type() const { return ValueType(); }

  // Sets rows[i] to the address of the row of ids[i], or to null where the
  // table has none; says how many have none. `n` is at most a few hundred.
  // InvalidArgument, naming the id, where an id cannot be in this table.
  virtual absl::StatusOr<int64_t> Locate(const int64_t* ids, int64_t n,
                                         const float** rows) const = 0;

  // Whether Locate asks the memory for the rows as a whole, as whoever finds
  // addresses in memory should. Else callers do, a few at a time while they
  // work on others.
  virtual bool asks_for_rows() const { return false; }

  // Writes the initial row of `id`, the one that a lookup of a missing id
  // reads, as floats.
  virtual void FillMissing(int64_t id, float* row) const = 0;
};

// A step's hold on a table, from Pin to the end of its sink: what was reserved
// stays, since nobody clears the table or widens its rows. It keeps all other
// writers out of a table of bounded size.
class TableHold {
 public:
  virtual ~TableHold() = default;

  // Holds are taken in this order, so that no two steps wait for each other.
  virtual uintptr_t order() const = 0;

  virtual bool is_bounded() const = 0;

  // Takes the hold. In a table of bounded size: keeps `ids`, in any order, from
  // being evicted as long as it lasts, and chooses what goes in their place.
  // Changes nothing. InvalidArgument where there are more distinct ones than
  // the table may hold; ResourceExhausted.
  virtual absl::Status Pin(absl::Span<const int64_t> ids) = 0;

  // Evicts what was chosen: the rows of the pinned ids fit. To be called when
  // nothing else can fail. REQUIRES: Pin.
  virtual void MakeRoom() = 0;
};

// Blocks of ids and their rows; the visitor may write to both.
constexpr int64_t kVisitRows = 64;  // At most so many a block.
using RowVisitor =
    std::function<void(absl::Span<int64_t> ids, MutableRow* rows)>;

// Where the rows of one table are updated. The table's ids are dealt to
// num_parts() parts by their ranks; different parts may be written at once,
// each by one thread.
class RowSink {
 public:
  virtual ~RowSink() = default;

  virtual int64_t dim() const = 0;
  virtual int num_parts() const = 0;  // A power of 2.

  // The dtype of a row's value, and how a step rounds to it.
  virtual RowRounding rounding() const { return RowRounding(ValueType()); }

  // One-to-one images of ids: equal ranks mean equal ids. Static tables: the
  // ids themselves; hash tables: their mixed hashes.
  virtual void Ranks(const int64_t* ids, int64_t n, uint64_t* ranks) const = 0;
  // Exclusive upper bound of ranks; 0 stands for 2^64: then the first bits of a
  // rank are its part. Where it is not 0 the sink is direct: the rank is the
  // id, the row of every id that Check lets pass is there already, and
  // different ids may be written at once; its one part needs no Lock and no
  // Reserve.
  virtual uint64_t rank_limit() const = 0;

  uint64_t Rank(int64_t id) const {
    uint64_t rank;
    Ranks(&id, 1, &rank);
    return rank;
  }
  // How far to shift a rank to the right for its part; 64 for one part.
  int part_shift() const { return 64 - __builtin_ctz(num_parts()); }
  int PartOf(uint64_t rank) const {
    return static_cast<int>(rank >> (part_shift() - 1) >> 1);
  }

  // The name of an id in error messages.
  virtual std::string NameOf(int64_t id) const { return std::to_string(id); }

  // Checked for all ids of a step before anything is changed.
  virtual absl::Status Check(const int64_t* ids, int64_t n) const = 0;

  // Null where the table is direct.
  virtual TableHold* hold() = 0;

  // Keeps room for n distinct ids of a part, so that FindOrInsert cannot fail,
  // until the part is unlocked or the sink ends. It is more than needed where
  // the ids are not named (null): then all may be new. ResourceExhausted leaves
  // the table as it was. REQUIRES: hold() was taken; nothing is kept for the
  // part; the caller does not hold it.
  virtual absl::Status Reserve(int part, const int64_t* ids, int64_t n) = 0;

  // Around FindOrInsert and what is done with its rows.
  virtual void Lock(int part) = 0;
  virtual void Unlock(int part) = 0;

  // Whether FindOrInsert may refuse ids.
  virtual bool refuses() const = 0;

  // The rows of n distinct ids of `part`, inserted with their initial row and
  // slots where they are missing; a null value where the table refuses to
  // insert the id yet. Callers ask the memory for the rows. REQUIRES: Reserve.
  virtual void FindOrInsert(int part, const int64_t* ids, int64_t n,
                            MutableRow* rows) = 0;

  // All rows that the table has, for rules that move every row. The rows are
  // dealt to slices, which may be visited at once, each by one thread that
  // holds no part; VisitSlice takes the locks that it needs. The ids of a
  // direct sink come in ascending order. A visit does not count as a use of a
  // row: the row expires as if it had not been visited.
  virtual int64_t num_slices() const = 0;
  virtual void VisitSlice(int64_t slice, const RowVisitor& visit) = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_ROWS_H_
