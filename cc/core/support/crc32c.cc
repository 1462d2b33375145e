#include "cc/core/support/crc32c.h"

#include <array>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace tfembed {
namespace {

#if defined(__SSE4_2__)

uint32_t NextWord(uint32_t sum, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(sum, word));
}

uint32_t NextByte(uint32_t sum, uint8_t byte) {
  return _mm_crc32_u8(sum, byte);
}

#else

constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) {
      sum = sum >> 1 ^ ((sum & 1) ? kPolynomial : 0);
    }
    table[byte] = sum;
  }
  return table;
}

uint32_t NextByte(uint32_t sum, uint8_t byte) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  return kTable[(sum ^ byte) & 0xff] ^ sum >> 8;
}

uint32_t NextWord(uint32_t sum, uint64_t word) {
  for (int i = 0; i < 8; ++i) sum = NextByte(sum, word >> (8 * i) & 0xff);
  return sum;
}

#endif

}  // namespace

uint32_t Crc32c(const void* bytes, int64_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  uint32_t sum = 0xffffffff;
  for (; size >= 8; at += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    sum = NextWord(sum, word);
  }
  for (; size > 0; ++at, --size) sum = NextByte(sum, *at);
  return ~sum;
}

}  // namespace tfembed
