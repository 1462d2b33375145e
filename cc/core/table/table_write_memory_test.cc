// Writes where the system has no memory for their notes on a batch.
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/refused_memory.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 2;
constexpr int64_t kKeys = 2000;  // Some 60 a stripe.

// So much is there for what every batch needs, once its thread sorted another.
constexpr size_t kEnoughToSort = 512;

std::unique_ptr<EmbeddingTable> NewTable(const std::string& eviction) {
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.eviction = eviction;
  auto table = EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0.0f}, /*seed=*/1, kDim));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

std::vector<int64_t> Keys(int64_t first) {
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

absl::Status Upsert(EmbeddingTable* table, const std::vector<int64_t>& keys,
                    float number) {
  const std::vector<float> rows(keys.size() * kDim, number);
  return table->Upsert(keys, rows.data(), nullptr);
}

absl::Status UpsertWithoutMemory(EmbeddingTable* table,
                                 const std::vector<int64_t>& keys,
                                 float number) {
  const std::vector<float> rows(keys.size() * kDim, number);
  refused_from = kEnoughToSort;
  absl::Status status = table->Upsert(keys, rows.data(), nullptr);
  refused_from = SIZE_MAX;
  return status;
}

void ExpectRefused(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(what), std::string::npos) << status;
}

void ExpectRows(const EmbeddingTable& table, const std::vector<int64_t>& keys,
                float number) {
  std::vector<float> found(keys.size() * kDim);
  table.Lookup(keys, found.data(), nullptr, nullptr);
  EXPECT_EQ(found, std::vector<float>(found.size(), number));
}

std::vector<double> Worth(const EmbeddingTable& table) {
  std::vector<int64_t> keys;
  std::vector<double> worth;
  const auto allocate =
      [&](int64_t n) -> absl::StatusOr<EmbeddingTable::WorthBuffers> {
    keys.resize(n);
    worth.resize(n);
    return EmbeddingTable::WorthBuffers{keys.data(), worth.data()};
  };
  EXPECT_TRUE(table.ExportWorth("", allocate, nullptr).ok());
  return worth;
}

TEST(TableWriteMemory, GrowthThatCannotCountNewKeysChangesNothing) {
  const auto table = NewTable("");
  const std::vector<int64_t> keys = Keys(0), others = Keys(kKeys);
  ASSERT_TRUE(Upsert(table.get(), keys, 1).ok());

  ExpectRefused(UpsertWithoutMemory(table.get(), others, 2), "new ones among");

  EXPECT_EQ(table->size(), kKeys);
  ExpectRows(*table, keys, 1);
  ExpectRows(*table, others, 0);
  ASSERT_TRUE(Upsert(table.get(), others, 2).ok());
  EXPECT_EQ(table->size(), 2 * kKeys);
  ExpectRows(*table, others, 2);
}

TEST(TableWriteMemory, ABatchWhoseRowsCannotBeCountedChangesNothing) {
  const auto table = NewTable("least_frequent");
  const std::vector<int64_t> keys = Keys(0);
  ASSERT_TRUE(Upsert(table.get(), keys, 1).ok());
  const std::vector<double> worth = Worth(*table);

  ExpectRefused(UpsertWithoutMemory(table.get(), keys, 2), "which rows");

  ExpectRows(*table, keys, 1);
  EXPECT_EQ(Worth(*table), worth);
  ASSERT_TRUE(Upsert(table.get(), keys, 2).ok());
  ExpectRows(*table, keys, 2);
  EXPECT_NE(Worth(*table), worth) << "Counted once more.";
}

}  // namespace
}  // namespace tfembed
