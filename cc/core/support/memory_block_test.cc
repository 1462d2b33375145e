#include "cc/core/support/memory_block.h"

#include <cstdint>
#include <utility>

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

TEST(MemoryBlock, WritesPagesAndLeavesWhatTheyHold) {
  auto block = MemoryBlock::Allocate(kHugePageBytes);
  ASSERT_TRUE(block.ok());
  char* const end = block->data() + kHugePageBytes;
  end[-200001] = 3;
  MemoryBlock::WritePages(end - 200000, 200000);
  EXPECT_EQ(end[-200001], 3);
  for (int64_t i = 1; i <= 200000; i += 997) ASSERT_EQ(end[-i], 0);
}

TEST(MemoryBlock, ReportsWhatTheSystemRefuses) {
  for (size_t bytes : {size_t{1} << 60, SIZE_MAX}) {
    EXPECT_EQ(MemoryBlock::Allocate(bytes).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tfembed
