#ifndef TFEMBED_CORE_SIMD_VECTOR_H_
#define TFEMBED_CORE_SIMD_VECTOR_H_

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Four, eight or sixteen floats at once, as wide as the file that includes this
// is compiled for. Several files of one library include it with different
// instruction sets, so nothing here, and nothing in a file that is compiled
// with its own instruction set, may have external linkage: the linker would
// keep one copy of an inline function for everybody, perhaps one with AVX-512.
// Hence `static`, raw pointers, builtins, and no header with functions that are
// not always inline or with static initializers, be it absl's or the standard
// library's.
namespace tfembed {

#if defined(__AVX512F__)
#define TFEMBED_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TFEMBED_VECTOR_BYTES 32
#else
#define TFEMBED_VECTOR_BYTES 16
#endif

typedef float Vec __attribute__((vector_size(TFEMBED_VECTOR_BYTES)));
typedef float UnalignedVec
    __attribute__((vector_size(TFEMBED_VECTOR_BYTES), aligned(4), may_alias));

static constexpr int64_t kLanes = TFEMBED_VECTOR_BYTES / sizeof(float);
static constexpr int64_t kLineFloats = 64 / sizeof(float);  // A cache line's.

static inline Vec Broadcast(float x) { return x - Vec{}; }

static inline Vec Load(const float* p) {
  return *reinterpret_cast<const UnalignedVec*>(p);
}

static inline void Store(float* p, Vec v) {
  *reinterpret_cast<UnalignedVec*>(p) = v;
}

// Past the caches; to a multiple of TFEMBED_VECTOR_BYTES.
static inline void Stream(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
#elif defined(__SSE2__)
  _mm_stream_ps(p, reinterpret_cast<__m128>(v));
#else
  Store(p, v);
#endif
}

// The first n of kLanes floats, 0 < n < kLanes; the other lanes are 0.
static inline Vec LoadFirst(const float* p, int64_t n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
#else
  Vec v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

static inline void StoreFirst(float* p, Vec v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1),
                        reinterpret_cast<__m512>(v));
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

static inline Vec Sqrt(Vec v) {
#if defined(__AVX512F__)
  // The unmasked form warns of an uninitialized variable in GCC's header.
  return reinterpret_cast<Vec>(
      _mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
#elif defined(__SSE2__)
  return reinterpret_cast<Vec>(_mm_sqrt_ps(reinterpret_cast<__m128>(v)));
#else
  for (int64_t i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

static inline float Sqrt(float x) { return __builtin_sqrtf(x); }

// Lane by lane through the C library: for exponents that no cheaper operation
// has.
static inline Vec Power(Vec v, float exponent) {
  for (int64_t i = 0; i < kLanes; ++i) {
    v[i] = __builtin_powf(v[i], exponent);
  }
  return v;
}

// A NaN stays one.
static inline Vec Clamp(Vec v, float low, float high) {
  const Vec lows = Broadcast(low);
  const Vec highs = Broadcast(high);
  v = v < lows ? lows : v;
  return v > highs ? highs : v;
}

// 1, -1 or 0; a NaN stays one.
static inline Vec Sign(Vec v) {
  const Vec ones = Broadcast(1);
  return v > Vec{} ? ones : v < Vec{} ? -ones : v;
}

// Moves v towards 0 by `by`, which is not negative, and not beyond 0.
static inline Vec Shrink(Vec v, Vec by) {
  Vec middle = v < -by ? -by : v;
  middle = middle > by ? by : middle;
  return v - middle;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SIMD_VECTOR_H_
