#ifndef TFEMBED_CORE_SIMD_HASH_BUCKET_H_
#define TFEMBED_CORE_SIMD_HASH_BUCKET_H_

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "absl/base/attributes.h"
#include "cc/core/support/hash.h"

// The part of a HashIndex that cc/core/simd reads. vector.h says which code may
// not stand here.
namespace tfembed {

// Up to 5 keys and the numbers of their rows; see HashIndex.
struct alignas(64) HashBucket {
  static constexpr int kPlaces = 5;

  int64_t keys[kPlaces];
  uint32_t rows[kPlaces];
  uint8_t count;     // Live entries, always the first ones.
  uint8_t overflow;  // Keys pushed on past here.
  uint8_t unused[2];
};

// Asks the memory for a bucket. Into the second cache: more lines can be under
// way to it than to the first, which is then near enough.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchBucket(
    const HashBucket* bucket) {
  __builtin_prefetch(bucket, /*rw=*/0, /*locality=*/2);
}

// Bit i is set where place i of the bucket holds the key. All places are
// compared, as vectors and without a branch: which place it is cannot be
// predicted.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint32_t PlacesOf(const HashBucket& bucket,
                                                      int64_t key) {
#if defined(__AVX512F__)
  // Lanes 5 to 7 are rows and counts: never among the first `count`.
  const uint32_t places = _mm512_cmpeq_epi64_mask(_mm512_load_si512(&bucket),
                                                  _mm512_set1_epi64(key));
#elif defined(__AVX2__)
  const __m256i four = _mm256_cmpeq_epi64(
      *reinterpret_cast<const __m256i*>(bucket.keys), _mm256_set1_epi64x(key));
  const uint32_t places =
      static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(four))) |
      static_cast<uint32_t>(bucket.keys[4] == key) << 4;
#elif defined(__SSE4_1__)
  const __m128i wanted = _mm_set1_epi64x(key);
  const __m128i* pairs = reinterpret_cast<const __m128i*>(bucket.keys);
  const __m128i first = _mm_cmpeq_epi64(_mm_load_si128(pairs), wanted);
  const __m128i second = _mm_cmpeq_epi64(_mm_load_si128(pairs + 1), wanted);
  const uint32_t places =
      static_cast<uint32_t>(_mm_movemask_pd(_mm_castsi128_pd(first))) |
      static_cast<uint32_t>(_mm_movemask_pd(_mm_castsi128_pd(second))) << 2 |
      static_cast<uint32_t>(bucket.keys[4] == key) << 4;
#else
  uint32_t places = 0;
  for (int i = 0; i < HashBucket::kPlaces; ++i) {
    places |= static_cast<uint32_t>(bucket.keys[i] == key) << i;
  }
#endif
  return places & ((1u << bucket.count) - 1);
}

// Scales 32 bits of the salted hash to [0, num_buckets), num_buckets < 2^32.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t BucketOf(uint64_t hash,
                                                      uint64_t salt,
                                                      uint64_t num_buckets) {
  return (((hash * salt) >> 32) * num_buckets) >> 32;
}

// The buckets of an index lie in chunks of so many, 64 KiB.
inline constexpr int kChunkBits = 10;
inline constexpr uint32_t kChunkBuckets = uint32_t{1} << kChunkBits;

ABSL_ATTRIBUTE_ALWAYS_INLINE inline HashBucket* BucketAt(
    HashBucket* const* chunks, uint64_t b) {
  return chunks[b >> kChunkBits] + (b & (kChunkBuckets - 1));
}

// The indexes of the stripes of a table: index s has num_buckets[s] buckets, in
// chunks[s][..]; null where no key is looked for.
struct alignas(64) StripeIndexes {
  uint64_t salts[kNumStripes];
  HashBucket* const* chunks[kNumStripes];
  uint64_t num_buckets[kNumStripes];

  ABSL_ATTRIBUTE_ALWAYS_INLINE const HashBucket* Home(uint64_t hash) const {
    const int s = StripeOf(hash);
    return BucketAt(chunks[s], BucketOf(hash, salts[s], num_buckets[s]));
  }
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SIMD_HASH_BUCKET_H_
