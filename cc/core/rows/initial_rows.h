#ifndef TFEMBED_CORE_ROWS_INITIAL_ROWS_H_
#define TFEMBED_CORE_ROWS_INITIAL_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// The row that a key has before anybody wrote it: a function of (seed, key,
// column) alone, the same for any batch, thread count, shard count and run.
//
// Kinds and their arguments:
//   "constant" {value}; "vector" {dim values};
//   "uniform" {low, high}: [low, high);
//   "normal" {mean, stddev};
//   "truncated_normal" {mean, stddev}: redrawn outside 2 stddev, exactly.
// Rows of narrow types are rounded float rows, those of float64 and integers
// are drawn and rounded as doubles. Immutable; thread-safe.
class InitialRows {
 public:
  // InvalidArgument for an unknown kind (it lists the known ones) or a wrong
  // number or value of arguments.
  static absl::StatusOr<InitialRows> Create(absl::string_view kind,
                                            std::vector<double> arguments,
                                            uint64_t seed, int64_t dim,
                                            ValueType type = ValueType()) {
    std::string fault;
    auto rows = Make(kind, std::move(arguments), seed, dim, type, &fault);
    if (!rows) return absl::InvalidArgumentError(fault);
    return *std::move(rows);
  }

  // The same for programs without absl's library: what is wrong goes to
  // `fault`.
  static std::optional<InitialRows> Make(absl::string_view kind,
                                         std::vector<double> arguments,
                                         uint64_t seed, int64_t dim,
                                         ValueType type, std::string* fault);

  // Writes dim() numbers of type().
  void Fill(int64_t key, void* row) const {
    if (type_.is_float32()) {
      FillNumbers(key, floats_, static_cast<float*>(row));
    } else {
      FillConverted(key, row);
    }
  }

  // Writes the row of Fill as floats. REQUIRES: type().is_trainable().
  void FillFloats(int64_t key, float* row) const;

  int64_t dim() const { return dim_; }
  ValueType type() const { return type_; }
  uint64_t seed() const { return seed_; }

  // The same kind and arguments, drawn from another seed.
  InitialRows WithSeed(uint64_t seed) const {
    InitialRows other = *this;
    other.seed_ = seed;
    return other;
  }

 private:
  enum class Kind { kConstant, kVector, kUniform, kNormal, kTruncatedNormal };

  InitialRows(Kind kind, std::vector<double> arguments, uint64_t seed,
              int64_t dim, ValueType type);

  void FillConverted(int64_t key, void* row) const;
  template <typename T>
  void FillNumbers(int64_t key, const std::vector<T>& arguments, T* row) const;

  Kind kind_;
  std::vector<double> doubles_;  // The arguments.
  std::vector<float> floats_;    // The same, rounded.
  uint64_t seed_;
  int64_t dim_;
  ValueType type_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_INITIAL_ROWS_H_
