#include "cc/core/sealed/string_hash.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

std::string Text(int size) {
  std::string text;
  for (int i = 0; i < size; ++i) text += static_cast<char>((i * 7 + 1) % 251);
  return text;
}

TEST(StringHash, IsThatOfTensorFlowForTextsOfAllKindsOfSizes) {
  struct {
    int size;
    uint64_t strong, fast;  // Modulo 2^63 - 1, by the key {11, 22}.
  } const expected[] = {
      {0, 620342764001026826, 1936946117179621456},
      {1, 1688515618842562795, 5161771770385946686},
      {3, 9204214930861118133, 2789093992221611352},
      {5, 732590250450923865, 5583097504302281796},
      {8, 5975833700809634935, 6071593574402114459},
      {13, 4420918404331847496, 8184283167698895875},
      {17, 4729702666185045149, 3746116100753135529},
      {31, 3723264816024701181, 7556654595216781936},
      {33, 52784123138372053, 1899142522721240168},
      {64, 4836941692065480189, 3185806361352394400},
      {65, 3513669852319269522, 7575834261568152771},
      {129, 1378026374843379253, 8611774581151790200},
      {300, 5689731330071519158, 3396543944349734184},
  };
  constexpr uint64_t kBuckets = (uint64_t{1} << 63) - 1;
  for (const auto& [size, strong, fast] : expected) {
    EXPECT_EQ(KeyedStringHash(Text(size), 11, 22) % kBuckets, strong) << size;
    EXPECT_EQ(Fingerprint64(Text(size)) % kBuckets, fast) << size;
  }
}

}  // namespace
}  // namespace tfembed
