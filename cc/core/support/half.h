#ifndef TFEMBED_CORE_SUPPORT_HALF_H_
#define TFEMBED_CORE_SUPPORT_HALF_H_

#include <cstdint>
#include <cstring>

namespace tfembed {

// IEEE binary16 and bfloat16, by their bits. Rounding is to the nearest, ties
// to even; what is too large becomes an infinity, a NaN stays one.

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct Bfloat16 {
  uint16_t bits;

  // `addend` below 2^16 decides what is rounded up: 2^15 - 1 (2^15 before an
  // odd number) rounds to the nearest, a random one makes the mean right.
  static Bfloat16 Rounded(float value, uint32_t addend) {
    const uint32_t whole = BitsOf(value);
    if ((whole & 0x7fffffff) > 0x7f800000) return {0x7fc0};
    if ((whole & 0x7fffffff) == 0x7f800000) return Top(whole);
    return Top(whole + addend);
  }
  static Bfloat16 Of(float value) {
    return Rounded(value, 0x7fff + ((BitsOf(value) >> 16) & 1));
  }
  float ToFloat() const { return FloatOf(uint32_t{bits} << 16); }

 private:
  static Bfloat16 Top(uint32_t whole) {
    return {static_cast<uint16_t>(whole >> 16)};
  }
};

struct Half {
  uint16_t bits;

  // The magnitude in units of the last place below the binary point: 13 bits
  // are cut off for normal numbers, more for smaller ones. `random` below 2^16,
  // or none, as for Bfloat16.
  static Half Rounded(float value, uint32_t random, bool to_nearest) {
    const uint32_t whole = BitsOf(value);
    const auto sign = static_cast<uint16_t>((whole >> 16) & 0x8000);
    const uint32_t magnitude = whole & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};
    const uint32_t exponent = magnitude >> 23;
    uint64_t digits;  // In units of 2^-cut of the result's last place.
    int cut = 13;
    if (exponent >= 113) {
      digits = magnitude - (uint32_t{112} << 23);
    } else {  // Subnormal in binary16.
      cut = 126 - static_cast<int>(exponent);
      if (cut > 40) cut = 40;
      digits = exponent == 0 ? 0 : (magnitude & 0x7fffff) | 0x800000;
    }
    const uint64_t addend =
        to_nearest  ? (uint64_t{1} << (cut - 1)) - 1 + ((digits >> cut) & 1)
        : cut >= 16 ? uint64_t{random} << (cut - 16)
                    : uint64_t{random} >> (16 - cut);
    return {static_cast<uint16_t>(sign | ((digits + addend) >> cut))};
  }
  static Half Of(float value) { return Rounded(value, 0, true); }

  float ToFloat() const {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0x1f) return FloatOf(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
      const float value = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    return FloatOf(sign | (exponent + 112) << 23 | mantissa << 13);
  }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HALF_H_
