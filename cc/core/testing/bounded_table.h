#ifndef TFEMBED_CORE_TESTING_BOUNDED_TABLE_H_
#define TFEMBED_CORE_TESTING_BOUNDED_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {

inline constexpr int64_t kBoundedDim = 2;

// A table of at most `max_size` rows of kBoundedDim numbers, or of `dim`.
inline std::unique_ptr<EmbeddingTable> Bounded(
    int64_t max_size, const std::string& eviction,
    const std::string& admission = "", ValueType type = {},
    int64_t dim = kBoundedDim) {
  EmbeddingTable::Options options;
  options.dim = dim;
  options.type = type;
  options.max_size = max_size;
  options.eviction = eviction;
  options.admission = admission;
  auto initial_rows = InitialRows::Create("constant", {0.5}, 1, dim, type);
  auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

// Rows that are full of their key.
inline absl::Status Upsert(EmbeddingTable* table,
                           const std::vector<int64_t>& keys) {
  std::vector<float> rows;
  for (int64_t key : keys) rows.insert(rows.end(), kBoundedDim, key);
  return table->Upsert(keys, rows.data(), nullptr);
}

// n keys from `begin` on.
inline std::vector<int64_t> From(int64_t begin, int64_t n) {
  std::vector<int64_t> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = begin + i;
  return keys;
}

inline std::vector<int> All(size_t n, bool value) {
  return std::vector<int>(n, value);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_BOUNDED_TABLE_H_
