#include "cc/core/sealed/string_hash.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace tfembed {
namespace {

uint64_t Word(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t HalfWord(const char* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

uint64_t Left(uint64_t word, int bits) {
  return word << bits | word >> (64 - bits);
}

uint64_t Right(uint64_t word, int bits) { return Left(word, 64 - bits); }

// The state of SipHash.
struct SipState {
  uint64_t a, b, c, d;

  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      a += b;
      c += d;
      b = Left(b, 13) ^ a;
      d = Left(d, 16) ^ c;
      a = Left(a, 32);
      a += d;
      c += b;
      d = Left(d, 21) ^ a;
      b = Left(b, 17) ^ c;
      c = Left(c, 32);
    }
  }

  void Take(uint64_t word) {
    d ^= word;
    Rounds(2);
    a ^= word;
  }
};

// The numbers of FarmHash: primes between 2^63 and 2^64.
constexpr uint64_t kFarm0 = 0xc3a5c85c97cb3127ULL;
constexpr uint64_t kFarm1 = 0xb492b66fbe98f273ULL;
constexpr uint64_t kFarm2 = 0x9ae16a3b2f90404fULL;

uint64_t Fold(uint64_t word) { return word ^ word >> 47; }

uint64_t Join(uint64_t one, uint64_t other, uint64_t factor) {
  const uint64_t first = Fold((one ^ other) * factor);
  return Fold((other ^ first) * factor) * factor;
}

uint64_t FarmTo16(const char* at, size_t size) {
  const char* const end = at + size;
  const uint64_t factor = kFarm2 + size * 2;
  if (size >= 8) {
    const uint64_t first = Word(at) + kFarm2;
    const uint64_t last = Word(end - 8);
    return Join(Right(last, 37) * factor + first,
                (Right(first, 25) + last) * factor, factor);
  }
  if (size >= 4) {
    return Join(size + (HalfWord(at) << 3), HalfWord(end - 4), factor);
  }
  if (size == 0) return kFarm2;
  const auto byte = [=](size_t i) -> uint32_t {
    return static_cast<unsigned char>(at[i]);
  };
  const uint32_t low = byte(0) + (byte(size >> 1) << 8);
  const uint32_t high = static_cast<uint32_t>(size) + (byte(size - 1) << 2);
  return Fold(low * kFarm2 ^ high * kFarm0) * kFarm2;
}

// What the first and the last 16 bytes of a text come to.
struct FarmEnds {
  uint64_t first, second;
};

FarmEnds EndsOf(const char* at, size_t size, uint64_t begin, uint64_t factor) {
  const char* const end = at + size;
  const uint64_t a = begin;
  const uint64_t b = Word(at + 8);
  const uint64_t c = Word(end - 8) * factor;
  const uint64_t d = Word(end - 16) * kFarm2;
  return {Right(a + b, 43) + Right(c, 30) + d, a + Right(b + kFarm2, 18) + c};
}

uint64_t FarmTo32(const char* at, size_t size) {
  const uint64_t factor = kFarm2 + size * 2;
  const FarmEnds ends = EndsOf(at, size, Word(at) * kFarm1, factor);
  return Join(ends.first, ends.second, factor);
}

uint64_t FarmTo64(const char* at, size_t size) {
  const char* const end = at + size;
  const uint64_t factor = kFarm2 + size * 2;
  const uint64_t begin = Word(at) * kFarm2;
  const FarmEnds ends = EndsOf(at, size, begin, factor);
  const uint64_t joined = Join(ends.first, ends.second, factor);
  const uint64_t e = Word(at + 16) * factor;
  const uint64_t f = Word(at + 24);
  const uint64_t g = (ends.first + Word(end - 32)) * factor;
  const uint64_t h = (joined + Word(end - 24)) * factor;
  return Join(Right(e + f, 43) + Right(g, 30) + h, e + Right(f + begin, 18) + g,
              factor);
}

// Two words that 32 bytes are mixed into.
struct FarmPair {
  uint64_t first = 0, second = 0;

  static FarmPair Of(const char* at, uint64_t a, uint64_t b) {
    a += Word(at);
    b = Right(b + a + Word(at + 24), 21);
    const uint64_t before = a;
    a += Word(at + 8) + Word(at + 16);
    b += Right(a, 44);
    return {a + Word(at + 24), b + before};
  }
};

uint64_t FarmBeyond64(const char* at, size_t size) {
  constexpr uint64_t kSeed = 81;
  uint64_t x = kSeed * kFarm2 + Word(at);
  uint64_t y = kSeed * kFarm1 + 113;
  uint64_t z = Fold(y * kFarm2 + 113) * kFarm2;
  FarmPair v, w;
  const size_t rest =
      (size - 1) & 63;  // Of the last block, but its first byte.
  const char* const last = at + size - 64;
  const auto take = [&](const char* block, uint64_t factor, uint64_t weight) {
    x = Right(x + y + v.first + Word(block + 8), 37) * factor;
    y = Right(y + v.second + Word(block + 48), 42) * factor;
    x ^= w.second * weight;
    y += v.first * weight + Word(block + 40);
    z = Right(z + w.first, 33) * factor;
    v = FarmPair::Of(block, v.second * factor, x + w.first);
    w = FarmPair::Of(block + 32, z + w.second, y + Word(block + 16));
    std::swap(z, x);
  };
  for (const char* const end = at + (size - 1) / 64 * 64; at != end; at += 64) {
    take(at, kFarm1, 1);
  }
  const uint64_t factor = kFarm1 + ((z & 0xff) << 1);
  w.first += rest;
  v.first += w.first;
  w.first += v.first;
  take(last, factor, 9);
  return Join(Join(v.first, w.first, factor) + Fold(y) * kFarm0 + z,
              Join(v.second, w.second, factor) + x, factor);
}

}  // namespace

uint64_t KeyedStringHash(absl::string_view text, uint64_t key, uint64_t key_2) {
  // "somepseudorandomlygeneratedbytes"
  SipState state = {0x736f6d6570736575ULL ^ key, 0x646f72616e646f6dULL ^ key_2,
                    0x6c7967656e657261ULL ^ key, 0x7465646279746573ULL ^ key_2};
  const char* at = text.data();
  size_t left = text.size();
  for (; left >= 8; at += 8, left -= 8) state.Take(Word(at));
  uint64_t last = 0;
  if (left > 0) std::memcpy(&last, at, left);
  state.Take(last | uint64_t{text.size()} << 56);
  state.c ^= 0xff;
  state.Rounds(4);
  return state.a ^ state.b ^ state.c ^ state.d;
}

uint64_t Fingerprint64(absl::string_view text) {
  if (text.size() <= 16) return FarmTo16(text.data(), text.size());
  if (text.size() <= 32) return FarmTo32(text.data(), text.size());
  if (text.size() <= 64) return FarmTo64(text.data(), text.size());
  return FarmBeyond64(text.data(), text.size());
}

}  // namespace tfembed
