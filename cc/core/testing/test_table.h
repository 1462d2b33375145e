#ifndef TFEMBED_CORE_TESTING_TEST_TABLE_H_
#define TFEMBED_CORE_TESTING_TEST_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {

// A table of width `dim` whose initial rows are all `initial_value`.
inline std::unique_ptr<EmbeddingTable> MakeTestTable(
    int64_t dim, float initial_value = 0, int64_t initial_capacity = 0) {
  auto initial_rows =
      InitialRows::Create("constant", {initial_value}, /*seed=*/1, dim);
  EmbeddingTable::Options options;
  options.dim = dim;
  options.initial_capacity = initial_capacity;
  auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
  if (!table.ok()) std::abort();
  return *std::move(table);
}

// Rows for `keys`, each filled with a number of its own.
inline std::vector<float> RowsOf(absl::Span<const float> numbers, int64_t dim) {
  std::vector<float> rows;
  for (float number : numbers) rows.insert(rows.end(), dim, number);
  return rows;
}

inline std::vector<float> LookUp(const EmbeddingTable& table,
                                 absl::Span<const int64_t> keys,
                                 Executor* executor = nullptr) {
  std::vector<float> values(keys.size() * table.dim());
  table.Lookup(keys, values.data(), nullptr, executor);
  return values;
}

// All keys of a table and their full rows, as Import takes them.
struct ExportedRows {
  std::vector<int64_t> keys;
  std::vector<float> full_rows;
  RowLayout layout;
};

inline ExportedRows ExportRows(const EmbeddingTable& table,
                               Executor* executor = nullptr) {
  const auto snapshot = table.Freeze();
  const int64_t width = snapshot->layout().width();
  ExportedRows all;
  all.layout = snapshot->layout();
  all.keys.resize(snapshot->size());
  all.full_rows.resize(snapshot->size() * width);
  snapshot->VisitBlocks(
      [&](int64_t first, absl::Span<const int64_t> keys,
          const float* const* rows) {
        std::copy(keys.begin(), keys.end(), all.keys.begin() + first);
        for (size_t i = 0; i < keys.size(); ++i) {
          std::copy(rows[i], rows[i] + width,
                    all.full_rows.begin() + (first + i) * width);
        }
      },
      executor);
  return all;
}

// Tells which keys are there, as ints, which print and compare well.
inline std::vector<int> Exists(const EmbeddingTable& table,
                               absl::Span<const int64_t> keys,
                               Executor* executor = nullptr) {
  std::vector<float> values(keys.size() * table.dim());
  std::unique_ptr<bool[]> exists(new bool[keys.size()]());
  table.Lookup(keys, values.data(), exists.get(), executor);
  return std::vector<int>(exists.get(), exists.get() + keys.size());
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_TEST_TABLE_H_
