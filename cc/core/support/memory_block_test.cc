#include "cc/core/support/memory_block.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cc/core/support/huge_pages.h"
#include "cc/core/testing/huge_page_use.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

class Sizes : public ::testing::TestWithParam<size_t> {};

TEST_P(Sizes, AreZeroedAlignedAndWritableToTheEnd) {
  const size_t bytes = GetParam();
  auto block = MemoryBlock::Allocate(bytes);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->size(), bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 64, 0u);
  if (bytes >= kHugePageBytes) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % kHugePageBytes, 0u);
  }
  for (size_t i = 0; i < bytes; i += 997) ASSERT_EQ(block->data()[i], 0);
  block->data()[bytes - 1] = 1;
}

INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         ::testing::Values(1, 64, 65535, 65536, 1000003,
                                           2 << 20, (5 << 20) + 12345));

TEST(MemoryBlock, MovesItsMemory) {
  auto first = MemoryBlock::Allocate(100000);
  char* const data = first->data();
  data[5] = 7;
  MemoryBlock second = *std::move(first);
  EXPECT_EQ(second.data(), data);
  MemoryBlock third = *MemoryBlock::Allocate(10);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.data()[5], 7);
  EXPECT_EQ(second.data(), nullptr);
}

TEST(MemoryBlock, KeepsSmallPagesWhereAskedTo) {
  auto block = MemoryBlock::Allocate(8 << 20, /*small_page_bytes=*/2 << 20);
  ASSERT_TRUE(block.ok());
  block->data()[0] = 1;
  block->data()[(8 << 20) - 1] = 1;
}

TEST(MemoryBlock, BecomesLargerWhereItIs) {
  constexpr size_t kMost = size_t{64} << 20;
  size_t size = 100000;
  auto block = MemoryBlock::AllocateExtensible(size, kMost);
  ASSERT_TRUE(block.ok());
  char* const data = block->data();
  for (size_t i = 0; i < size; i += 997) data[i] = static_cast<char>(i % 127);
  while (size * 4 / 3 < kMost) {
    const size_t larger = size * 4 / 3;
    ASSERT_TRUE(block->Extend(larger));
    ASSERT_EQ(block->data(), data);
    ASSERT_EQ(block->size(), larger);
    for (size_t i = 0; i < larger; i += 997) {
      ASSERT_EQ(data[i], i < size ? static_cast<char>(i % 127) : 0) << i;
      data[i] = static_cast<char>(i % 127);
    }
    size = larger;
  }
  EXPECT_TRUE(block->CanExtend(kMost));
  EXPECT_FALSE(block->CanExtend(kMost + 1));
  EXPECT_FALSE(block->Extend(kMost + 1));
  EXPECT_EQ(block->size(), size);
  EXPECT_TRUE(block->Extend(100));
  EXPECT_EQ(block->size(), size);
}

TEST(MemoryBlock, IsOnHugePagesAlsoWhereItGrewFromSmallOnes) {
  constexpr size_t kWhole = 4 * kHugePageBytes;
  auto block = MemoryBlock::AllocateExtensible(kHugePageBytes / 3, kWhole);
  ASSERT_TRUE(block.ok());
  const int64_t before = HugePageKib();
  for (size_t size = block->size(); size < kWhole;) {
    block->WritePages(0, size);  // On small pages, those of the end.
    block->data()[size - 1] = 5;
    const size_t larger = std::min(size + kHugePageBytes / 3, kWhole);
    ASSERT_TRUE(block->Extend(larger));
    ASSERT_EQ(block->data()[size - 1], 5);
    ASSERT_EQ(block->data()[larger - 1], 0);
    size = larger;
  }
  block->WritePages(0, kWhole);
  if (CanCollapse()) {
    EXPECT_GE(HugePageKib() - before, int64_t{kWhole / 1024});
  }
}

TEST(MemoryBlock, OfTheHeapIsNotExtensible) {
  auto block = MemoryBlock::AllocateExtensible(1000, 100000);
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(block->CanExtend(1000));
  EXPECT_FALSE(block->CanExtend(1001));
  EXPECT_FALSE(block->Extend(1001));
  EXPECT_FALSE(MemoryBlock().Extend(1));
}

TEST(MemoryBlock, IsGivenWithoutRoomWhereAddressesAreScarce) {
  auto block = MemoryBlock::AllocateExtensible(100000, size_t{1} << 60);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->size(), 100000u);
  EXPECT_FALSE(block->Extend(1 << 20));
}

TEST(MemoryBlock, ReportsWhatTheSystemRefuses) {
  for (size_t bytes : {size_t{1} << 60, SIZE_MAX}) {
    EXPECT_EQ(MemoryBlock::Allocate(bytes).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tfembed
