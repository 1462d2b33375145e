#include "cc/core/rows/value_type.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "cc/core/support/half.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/keyed_random.h"

namespace tfembed {
namespace {

// sqrt(3): the bits of no initial row.
constexpr uint64_t kRoundingSalt = 0xbb67ae8584caa73bULL;

template <typename T>
T Load(const void* from, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T),
              sizeof(T));
  return value;
}

template <typename T>
void Store(T value, void* to, int64_t i) {
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Converted(double value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return T::Of(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    if (std::isnan(value)) return 0;
    // The bounds as doubles: the upper one may be rounded up.
    if (value <= static_cast<double>(Limits::min())) return Limits::min();
    if (value >= static_cast<double>(Limits::max())) return Limits::max();
    return static_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return value.ToFloat();
  } else {
    return static_cast<double>(value);
  }
}

// a + b or a - b: of halves by floats, of integers modulo their range.
template <typename T, typename Operation>
T Combined(T a, T b, Operation operation) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return T::Of(operation(a.ToFloat(), b.ToFloat()));
  } else if constexpr (std::is_same_v<T, bool>) {
    return operation(int{a}, int{b}) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(
        operation(static_cast<Unsigned>(a), static_cast<Unsigned>(b))));
  } else {
    return operation(a, b);
  }
}

// Calls body(T()) with the C++ type of a kind.
template <typename Body>
auto WithType(ElementKind kind, Body body) {
  switch (kind) {
    case ElementKind::kFloat16:
      return body(Half());
    case ElementKind::kBfloat16:
      return body(Bfloat16());
    case ElementKind::kFloat64:
      return body(double());
    case ElementKind::kInt8:
      return body(int8_t());
    case ElementKind::kInt32:
      return body(int32_t());
    case ElementKind::kInt64:
      return body(int64_t());
    case ElementKind::kBool:
      return body(bool());
    case ElementKind::kFloat32:
      break;
  }
  return body(float());
}

}  // namespace

int64_t ValueType::size() const {
  return WithType(kind_, [](auto zero) { return int64_t{sizeof(zero)}; });
}

const char* ValueType::name() const {
  switch (kind_) {
    case ElementKind::kFloat16:
      return "float16";
    case ElementKind::kBfloat16:
      return "bfloat16";
    case ElementKind::kFloat64:
      return "float64";
    case ElementKind::kInt8:
      return "int8";
    case ElementKind::kInt32:
      return "int32";
    case ElementKind::kInt64:
      return "int64";
    case ElementKind::kBool:
      return "bool";
    case ElementKind::kFloat32:
      break;
  }
  return "float32";
}

bool ValueType::is_half() const {
  return kind_ == ElementKind::kFloat16 || kind_ == ElementKind::kBfloat16;
}

bool ValueType::is_trainable() const { return is_float32() || is_half(); }

void ValueType::FromDoubles(const double* from, void* to, int64_t n) const {
  WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i) Store(Converted<T>(from[i]), to, i);
  });
}

void ValueType::FromFloats(const float* from, void* to, int64_t n) const {
  WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
        Store(T::Of(from[i]), to, i);
      } else {
        Store(Converted<T>(from[i]), to, i);
      }
    }
  });
}

void ValueType::ToFloats(const void* from, float* to, int64_t n) const {
  if (kind_ == ElementKind::kFloat16) {
    for (int64_t i = 0; i < n; ++i) to[i] = Load<Half>(from, i).ToFloat();
  } else if (kind_ == ElementKind::kBfloat16) {
    for (int64_t i = 0; i < n; ++i) to[i] = Load<Bfloat16>(from, i).ToFloat();
  } else {
    std::memcpy(to, from, n * sizeof(float));
  }
}

void ValueType::RoundByBits(const float* from, const uint16_t* bits, void* to,
                            int64_t n) const {
  if (kind_ == ElementKind::kFloat16) {
    for (int64_t i = 0; i < n; ++i) {
      Store(Half::ByChance(from[i], bits[i]), to, i);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      Store(Bfloat16::ByChance(from[i], bits[i]), to, i);
    }
  }
}

void ValueType::Add(const void* from, void* to, int64_t n) const {
  WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i) {
      const T sum = Combined(Load<T>(to, i), Load<T>(from, i), std::plus<>());
      Store(sum, to, i);
    }
  });
}

void ValueType::AddChange(const void* from, const void* old, void* to,
                          int64_t n) const {
  WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i) {
      const T change =
          Combined(Load<T>(from, i), Load<T>(old, i), std::minus<>());
      Store(Combined(Load<T>(to, i), change, std::plus<>()), to, i);
    }
  });
}

bool ValueType::HasNan(const void* from, int64_t n) const {
  return WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    bool found = false;
    if constexpr (!std::is_integral_v<T>) {
      for (int64_t i = 0; i < n; ++i) {
        found |= std::isnan(ToDouble(Load<T>(from, i)));
      }
    }
    return found;
  });
}

double ValueType::SquaredNorm(const void* from, int64_t n) const {
  return WithType(kind_, [=](auto zero) {
    using T = decltype(zero);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double x = ToDouble(Load<T>(from, i));
      sum += x * x;
    }
    return sum;
  });
}

RowRounding::RowRounding(ValueType type, uint64_t seed, uint64_t step)
    : type_(type),
      by_chance_(true),
      seed_(MixBits(seed ^ kRoundingSalt) + step) {}

void RowRounding::Round(const float* from, int64_t n, int64_t key,
                        uint64_t occurrence, void* row) const {
  if (!by_chance_) {
    type_.FromFloats(from, row, n);
    return;
  }
  constexpr int64_t kBlock = 64;   // Numbers at a time.
  constexpr int64_t kPerDraw = 4;  // Numbers of 16 bits.
  const KeyedRandom random(seed_, key);
  uint64_t draw = occurrence << 32;
  uint64_t draws[kBlock / kPerDraw];
  uint16_t bits[kBlock];
  static_assert(sizeof(draws) == sizeof(bits));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    for (int64_t i = 0; i * kPerDraw < size; ++i)
      draws[i] = random.Bits(draw++);
    std::memcpy(bits, draws, sizeof(bits));
    type_.RoundByBits(from + begin, bits,
                      static_cast<char*>(row) + begin * type_.size(), size);
  }
}

}  // namespace tfembed
