// Tables of bounded size where the system has no memory for a batch.
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/refused_memory.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 2;
constexpr int64_t kMaxSize = 3000;

TEST(TableBoundMemory, ABatchWithoutMemoryChangesNothing) {
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.eviction = "least_recent";
  options.max_size = kMaxSize;
  auto table = EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0.0f}, /*seed=*/1, kDim));
  ASSERT_TRUE(table.ok()) << table.status();
  std::vector<int64_t> keys(kMaxSize);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> rows(kMaxSize * kDim, 1.0f);
  ASSERT_TRUE((*table)->Upsert(keys, rows.data(), nullptr).ok());

  std::vector<int64_t> others(2000);
  std::iota(others.begin(), others.end(), kMaxSize);
  std::vector<char> exists(others.size(), 0);
  auto* const missing = reinterpret_cast<const bool*>(exists.data());
  int refused = 0;
  // From "nothing of 256 bytes" on; in the end all is there.
  for (size_t bytes = 256; bytes < size_t{1} << 20; bytes *= 2) {
    refused_from = bytes;
    const absl::Status upserted =
        (*table)->Upsert(others, rows.data(), nullptr);
    const absl::Status added =
        upserted.ok()
            ? upserted
            : (*table)->Accum(others, rows.data(), nullptr, missing, nullptr);
    refused_from = SIZE_MAX;
    std::vector<char> found(keys.size());
    (*table)->Contains(keys, reinterpret_cast<bool*>(found.data()), nullptr);
    const int64_t stayed = std::accumulate(found.begin(), found.end(), 0);
    EXPECT_EQ((*table)->size(), kMaxSize);
    if (upserted.ok()) {
      EXPECT_EQ(stayed, kMaxSize - 2000);
      break;
    }
    ++refused;
    EXPECT_EQ(upserted.code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_EQ(added.code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_EQ(stayed, kMaxSize) << bytes;
  }
  EXPECT_GE(refused, 2);
}

}  // namespace
}  // namespace tfembed
