// Notes of eviction policies, as Savers bring them in.
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/bounded_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

std::map<int64_t, uint32_t> NotesOf(const EmbeddingTable& table) {
  std::map<int64_t, uint32_t> notes;
  const auto frozen = table.Freeze();
  const int64_t width = frozen->layout().width();
  const auto visit = [&](absl::Span<const int64_t> keys, const float* rows) {
    for (const int64_t key : keys) {
      notes[key] = frozen->Note(rows);
      rows += width;
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(frozen->Visit(10, visit, nullptr).ok());
  return notes;
}

using Notes = std::map<int64_t, uint32_t>;

TEST(ImportNotes, ReplacesThoseOfRowsThatAreThere) {
  auto table = Bounded(100, "least_frequent");
  ASSERT_TRUE(Upsert(table.get(), {1, 2}).ok());
  ASSERT_TRUE(table->ImportNotes({2, 3}, {7, 8}).ok());
  EXPECT_EQ(NotesOf(*table), Notes({{1, 1}, {2, 7}}));
}

TEST(ImportNotes, CountsStepsBackFromTheTablesOwn) {
  auto table = Bounded(100, "least_recent");
  for (int64_t key : {1, 2, 3}) ASSERT_TRUE(Upsert(table.get(), {key}).ok());
  ASSERT_TRUE(table->ImportNotes({3}, {40}).ok());
  EXPECT_EQ(NotesOf(*table), Notes({{1, 2}, {2, 1}, {3, 40}}));
}

TEST(ImportNotes, LeavesRowsWithoutNotesAlone) {
  auto table = Bounded(0, "");
  ASSERT_TRUE(Upsert(table.get(), {5}).ok());
  ASSERT_TRUE(table->ImportNotes({5}, {7}).ok());
  float values[kBoundedDim];
  table->Lookup({5}, values, nullptr, nullptr);
  EXPECT_EQ(values[kBoundedDim - 1], 5);
}

}  // namespace
}  // namespace tfembed
