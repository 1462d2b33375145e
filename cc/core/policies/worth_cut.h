#ifndef TFEMBED_CORE_POLICIES_WORTH_CUT_H_
#define TFEMBED_CORE_POLICIES_WORTH_CUT_H_

#include <array>
#include <cstdint>
#include <memory>

namespace tfembed {

// Finds the rows of the highest worth among many, from several passes over
// their worth, in 96 KB of memory however many rows there are:
//
//   WorthCut cut(most);
//   do {
//     for (double worth : all) cut.Note(worth);  // In any order.
//   } while (!cut.EndPass());
//   for (double worth : all) cut.Keeps(worth);   // In the order of the rows.
//
// Keeps is true `most` times, or for all rows if there are fewer; of rows of
// the same worth the last ones are kept, as `evict` removes the first ones.
// A pass counts the rows between two bounds in 4,096 buckets, and finds the
// bucket at whose rows the cut is; the next pass looks at that bucket alone. It
// takes 6 passes at most, and 2 or 3 for counts and norms. Not thread-safe.
class WorthCut {
 public:
  // REQUIRES: most >= 1.
  explicit WorthCut(int64_t most);

  // REQUIRES, here and below: no worth is NaN.
  void Note(double worth);

  // Whether the cut is known: no further pass is needed.
  bool EndPass();

  // REQUIRES: EndPass was true.
  bool Keeps(double worth);

 private:
  // The rows whose order is in a part of [low_, high_].
  struct Bucket {
    int64_t rows = 0;
    uint64_t least = ~uint64_t{0};
    uint64_t most = 0;
  };
  static constexpr int kBucketBits = 12;
  using Buckets = std::array<Bucket, 1 << kBucketBits>;

  // Begins a pass over rows of this order.
  void Begin(uint64_t low, uint64_t high);

  std::unique_ptr<Buckets> buckets_;  // Null once the cut is known.
  uint64_t low_, high_;
  int shift_;
  int64_t wanted_;  // Rows to keep, of those in [low_, high_].
  uint64_t cut_ = 0;
  int64_t dropped_ = 0;  // Rows at the cut that are still to be dropped.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_WORTH_CUT_H_
