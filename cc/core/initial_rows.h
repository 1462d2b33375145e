#ifndef TFEMBED_CORE_INITIAL_ROWS_H_
#define TFEMBED_CORE_INITIAL_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tfembed {

// The row that a key has before anybody wrote it: a function of (seed, key,
// column) alone, the same for any batch, thread count, shard count and run.
//
// Kinds and their arguments:
//   "constant" {value}; "vector" {dim values};
//   "uniform" {low, high}: [low, high);
//   "normal" {mean, stddev};
//   "truncated_normal" {mean, stddev}: redrawn outside 2 stddev, exactly.
// Immutable; thread-safe.
class InitialRows {
 public:
  // InvalidArgument for an unknown kind (it lists the known ones) or a wrong
  // number or value of arguments.
  static absl::StatusOr<InitialRows> Create(absl::string_view kind,
                                            std::vector<float> arguments,
                                            uint64_t seed, int64_t dim);

  // Writes dim() floats.
  void Fill(int64_t key, float* row) const;

  int64_t dim() const { return dim_; }
  uint64_t seed() const { return seed_; }

  // The same kind and arguments, drawn from another seed.
  InitialRows WithSeed(uint64_t seed) const {
    InitialRows other = *this;
    other.seed_ = seed;
    return other;
  }

 private:
  enum class Kind { kConstant, kVector, kUniform, kNormal, kTruncatedNormal };

  InitialRows(Kind kind, std::vector<float> arguments, uint64_t seed,
              int64_t dim)
      : kind_(kind), arguments_(std::move(arguments)), seed_(seed), dim_(dim) {}

  Kind kind_;
  std::vector<float> arguments_;
  uint64_t seed_;
  int64_t dim_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_INITIAL_ROWS_H_
