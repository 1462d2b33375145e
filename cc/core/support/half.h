#ifndef TFEMBED_CORE_SUPPORT_HALF_H_
#define TFEMBED_CORE_SUPPORT_HALF_H_

#include <cstdint>
#include <cstring>

namespace tfembed {

// IEEE binary16 and bfloat16, by their bits, without branches, so that loops
// become vectors. `Of` rounds to the nearest, ties to even; what is too large
// becomes an infinity, a NaN stays one. `ByChance` rounds up where `random`,
// below 2^16, says so: of all random numbers as many as make the mean right, to
// 2^-16 of the last place. Beyond the largest finite number it does as `Of`.

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

  static Bfloat16 Of(float value) {
    const uint32_t whole = BitsOf(value);
    const uint32_t rounded = (whole + 0x7fff + ((whole >> 16) & 1)) >> 16;
    const bool is_nan = (whole & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded)};
  }

  static Bfloat16 ByChance(float value, uint16_t random) {
    constexpr uint32_t kLargest = 0x7f7f0000;
    const uint32_t whole = BitsOf(value);
    const auto chosen = static_cast<uint16_t>((whole + random) >> 16);
    return {(whole & 0x7fffffff) > kLargest ? Of(value).bits : chosen};
  }

  float ToFloat() const { return FloatOf(uint32_t{bits} << 16); }
};

struct Half {
  uint16_t bits;

  static Half Of(float value) {
    const uint32_t whole = BitsOf(value);
    const uint32_t magnitude = whole & 0x7fffffff;
    const uint32_t rebased = magnitude - kRebase;
    const uint32_t normal = (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13;
    // In units of 2^-24, the last place of 0.5.
    const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    uint32_t result = magnitude < kSmallestNormal ? small : normal;
    result = magnitude >= kTooLarge ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return {static_cast<uint16_t>(result | ((whole >> 16) & 0x8000))};
  }

  static Half ByChance(float value, uint16_t random) {
    constexpr uint32_t kLargest = 0x477fe000;
    const uint32_t whole = BitsOf(value);
    const uint32_t magnitude = whole & 0x7fffffff;
    const uint32_t normal = (magnitude - kRebase + (random >> 3)) >> 13;
    // In units of 2^-40, 16 bits below the last place.
    const bool is_small = magnitude < kSmallestNormal;
    const float scaled = FloatOf(is_small ? magnitude : 0) * 0x1p40f;
    const uint32_t small = (static_cast<int32_t>(scaled) + random) >> 16;
    const uint32_t result = is_small ? small : normal;
    const auto chosen =
        static_cast<uint16_t>(result | ((whole >> 16) & 0x8000));
    return {magnitude > kLargest ? Of(value).bits : chosen};
  }

  float ToFloat() const {
    const uint32_t mantissa = bits & 0x3ff;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    // No subnormal float on the way: threads may flush those to zero.
    const uint32_t small = BitsOf(static_cast<float>(mantissa) * 0x1p-24f);
    const uint32_t normal =
        (exponent == 0x1f ? 0xff : exponent + 112) << 23 | mantissa << 13;
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    return FloatOf(sign | (exponent == 0 ? small : normal));
  }

 private:
  static constexpr uint32_t kRebase = 112u << 23;
  static constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  static constexpr uint32_t kTooLarge = 0x47800000;        // 2^16
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HALF_H_
