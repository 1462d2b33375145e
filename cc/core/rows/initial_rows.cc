#include "cc/core/rows/initial_rows.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "cc/core/support/keyed_random.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

// Columns take counters 0, 1, 2 ...; what is drawn again takes those a whole
// number of kRedraw further on.
constexpr uint64_t kRedraw = uint64_t{1} << 32;

std::string BadArguments(absl::string_view kind, absl::string_view rule,
                         const std::vector<double>& arguments) {
  constexpr size_t kShown = 4;
  std::ostringstream text;
  text << "Initial rows '" << kind << "' " << rule << "; got "
       << arguments.size() << " arguments: {";
  for (size_t i = 0; i < std::min(kShown, arguments.size()); ++i) {
    text << (i > 0 ? ", " : "") << arguments[i];
  }
  text << (arguments.size() > kShown ? ", ..." : "") << "}.";
  return text.str();
}

bool AllFinite(const std::vector<double>& arguments) {
  for (double argument : arguments) {
    if (!std::isfinite(argument)) return false;
  }
  return true;
}

// In [low, high), whatever the rounding.
template <typename T>
T ScaleUniform(double uniform, T low, T high) {
  const double value =
      low + uniform * (static_cast<double>(high) - static_cast<double>(low));
  const T rounded = static_cast<T>(value);
  return rounded < high ? rounded : std::nextafter(high, low);
}

// Standard normal, drawn again until it is within 2 standard deviations.
double TruncatedNormal(const KeyedRandom& random, uint64_t counter) {
  for (;; counter += kRedraw) {
    const double value = NormalQuantile(random.Uniform(counter));
    if (std::fabs(value) <= 2) return value;
  }
}

}  // namespace

std::optional<InitialRows> InitialRows::Make(absl::string_view kind,
                                             std::vector<double> arguments,
                                             uint64_t seed, int64_t dim,
                                             ValueType type,
                                             std::string* fault) {
  const auto size = static_cast<int64_t>(arguments.size());
  Kind parsed = Kind::kConstant;
  std::string rule;  // The one that the arguments break.
  if (dim < 0) {
    *fault = "`dim` must not be negative; got " + std::to_string(dim) + ".";
    return std::nullopt;
  }
  if (kind == "constant") {
    if (size != 1) rule = "take {value}";
  } else if (kind == "vector") {
    parsed = Kind::kVector;
    if (size != dim) rule = "take " + std::to_string(dim) + " values";
  } else if (kind == "uniform") {
    parsed = Kind::kUniform;
    if (size != 2 || !AllFinite(arguments) || !(arguments[0] < arguments[1])) {
      rule = "take finite {low, high}, low < high";
    }
  } else if (kind == "normal" || kind == "truncated_normal") {
    parsed = kind == "normal" ? Kind::kNormal : Kind::kTruncatedNormal;
    if (size != 2 || !AllFinite(arguments) || arguments[1] < 0) {
      rule = "take finite {mean, stddev}, stddev >= 0";
    }
  } else {
    *fault = "Unknown kind of initial rows '" + std::string(kind) +
             "'. Known: constant, vector, uniform, normal, truncated_normal.";
    return std::nullopt;
  }
  if (!rule.empty()) {
    *fault = BadArguments(kind, rule, arguments);
    return std::nullopt;
  }
  return InitialRows(parsed, std::move(arguments), seed, dim, type);
}

InitialRows::InitialRows(Kind kind, std::vector<double> arguments,
                         uint64_t seed, int64_t dim, ValueType type)
    : kind_(kind),
      doubles_(std::move(arguments)),
      floats_(doubles_.begin(), doubles_.end()),
      seed_(seed),
      dim_(dim),
      type_(type) {}

template <typename T>
void InitialRows::FillNumbers(int64_t key, const std::vector<T>& arguments,
                              T* row) const {
  if (kind_ == Kind::kConstant) {
    std::fill_n(row, dim_, arguments[0]);
    return;
  }
  if (kind_ == Kind::kVector) {
    std::copy_n(arguments.data(), dim_, row);
    return;
  }
  const KeyedRandom random(seed_, key);
  for (int64_t i = 0; i < dim_; ++i) {
    switch (kind_) {
      case Kind::kUniform:
        row[i] = ScaleUniform(random.Uniform(i), arguments[0], arguments[1]);
        break;
      case Kind::kNormal:
        row[i] = static_cast<T>(
            arguments[0] + arguments[1] * NormalQuantile(random.Uniform(i)));
        break;
      case Kind::kTruncatedNormal:
        row[i] = static_cast<T>(arguments[0] +
                                arguments[1] * TruncatedNormal(random, i));
        break;
      case Kind::kConstant:
      case Kind::kVector:
        break;
    }
  }
}

template void InitialRows::FillNumbers(int64_t, const std::vector<float>&,
                                       float*) const;

void InitialRows::FillConverted(int64_t key, void* row) const {
  if (type_.is_trainable()) {
    static thread_local std::vector<float> floats;
    floats.resize(dim_);
    FillNumbers(key, floats_, floats.data());
    type_.FromFloats(floats.data(), row, dim_);
    return;
  }
  static thread_local std::vector<double> doubles;
  doubles.resize(dim_);
  FillNumbers(key, doubles_, doubles.data());
  type_.FromDoubles(doubles.data(), row, dim_);
}

void InitialRows::FillFloats(int64_t key, float* row) const {
  FillNumbers(key, floats_, row);
  if (type_.is_float32()) return;
  static thread_local std::vector<char> stored;
  stored.resize(dim_ * type_.size());
  type_.FromFloats(row, stored.data(), dim_);
  type_.ToFloats(stored.data(), row, dim_);
}

}  // namespace tfembed
