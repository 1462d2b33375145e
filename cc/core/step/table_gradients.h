#ifndef TFEMBED_CORE_STEP_TABLE_GRADIENTS_H_
#define TFEMBED_CORE_STEP_TABLE_GRADIENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/rows/rows.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/step/gradient_entries.h"
#include "cc/core/step/grouped_update.h"

namespace tfembed {

// Gradients of consecutive ids of one part, summed.
struct SumBlock {
  int part = 0;
  int64_t n = 0;
  std::vector<int64_t> ids;   // [n]
  std::vector<float> sums;    // [n, dim]
  std::vector<double> total;  // [dim], for a reader: the sum of a long run.

  // The most sums that a reader puts into a block: about what the nearest
  // cache holds of sums and their rows.
  static constexpr int64_t kMostSums = 128;
  static int64_t MostSums(int64_t dim) {
    return std::clamp<int64_t>(2048 / dim, 8, kMostSums);
  }

  // Takes the memory that readers of sums of `dim` floats need.
  void Prepare(int64_t dim) {
    ids.reserve(MostSums(dim));
    sums.reserve(MostSums(dim) * dim);
    total.reserve(dim);
  }
};

// Reads a task's sums in the order of ranks, a block at a time.
class SumReader {
 public:
  // Reads the next block; false at the end. The block's vectors may be larger
  // than its n, and take no memory if the block is prepared. Prefetches
  // `to_write`, rows of earlier blocks, meanwhile.
  virtual bool Next(SumBlock* block, const RowsToFetch& to_write) = 0;

 protected:
  ~SumReader() = default;
};

// The memory of a reader, which ends with it.
struct SumReaderPlace {
  alignas(std::max_align_t) char bytes[7424];
};

// Sums the gradients of one table's bags in one step per id. Gradients are
// never copied per id: an entry of 8 or 16 bytes per id of a bag is sorted, and
// the sums are computed from the bags' gradients.
//
//   Collect(r) for every range r       checks the ids (in any order, at once)
//   Deal()                             deals the ids to tasks
//   Sort(t) for every task t           needed if Options::keeps_sorted
//   Read(t, place) for every task t    (both in any order, at once)
//
// An id belongs to one task; the entries of an id keep the order of features,
// bags and ids. So the result does not depend on the number or timing of
// threads.
class TableGradients {
 public:
  struct Options {
    absl::Span<const BagGradients> features;
    int64_t dim = 0;
    const RowSink* sink = nullptr;  // Null: distinct ids come out ascending.
    IdRange ids;                    // Needed unless the sink is direct.
    bool accumulate = true;         // False: one "sum" per occurrence.
    int64_t max_tasks = 1;
    // If true, Sort() keeps the sorted entries. If not, Read() sorts them into
    // the thread's scratch memory.
    bool keeps_sorted = false;
  };

  // InvalidArgument: more than 2^32 bags or ids.
  static absl::StatusOr<std::unique_ptr<TableGradients>> Create(
      const Options& options);

  virtual ~TableGradients() = default;

  virtual int64_t num_ids() const = 0;
  virtual int64_t num_ranges() const = 0;
  virtual absl::Status Collect(int64_t range) = 0;

  virtual void Deal() = 0;
  virtual int64_t num_tasks() const = 0;  // After Deal(): at most max_tasks.

  // Distinct ids of a task's parts.
  struct PartSize {
    int part;
    int64_t ids;
  };
  virtual void Sort(int64_t task) = 0;
  virtual const std::vector<PartSize>& PartSizes(int64_t task) const = 0;

  // Multiplies the gradients of all later readers. REQUIRES: there is no
  // reader.
  virtual void Scale(float factor) = 0;

  // An upper bound of a task's sums. After Deal().
  virtual int64_t MostSums(int64_t task) const = 0;

  // Takes the memory, kept by the thread that calls it, that Read needs for any
  // task. After Deal().
  virtual void Prepare() = 0;

  // At most one reader per thread at a time.
  virtual SumReader* Read(int64_t task, SumReaderPlace* place) = 0;
};

// Removes the sums with a NaN or an infinity, and their ids, from a block of
// rows of `dim` floats; returns their number.
int64_t DropNonFinite(int64_t dim, SumBlock* block);

// InvalidArgument if a reader has such a sum; the text names its id and
// `table`.
absl::Status RefuseNonFinite(absl::string_view table, const RowSink& sink,
                             SumReader* reader);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_TABLE_GRADIENTS_H_
