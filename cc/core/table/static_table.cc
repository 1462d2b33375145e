#include "cc/core/table/static_table.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

absl::Status OutOfRange(const StaticTable& table, int64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat("Id ", id, " is not in table '", table.name,
                   "', which has the rows 0 to ", table.num_rows - 1, "."));
}

bool IsInTable(const StaticTable& table, int64_t id) {
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(table.num_rows);
}

class StaticRowSource final : public RowSource {
 public:
  explicit StaticRowSource(const StaticTable& table) : table_(table) {}

  int64_t dim() const override { return table_.dim; }

  absl::StatusOr<int64_t> Locate(const int64_t* ids, int64_t n,
                                 const float** rows) const override {
    const int64_t dim = table_.dim;
    for (int64_t i = 0; i < n; ++i) {
      if (!IsInTable(table_, ids[i])) return OutOfRange(table_, ids[i]);
      rows[i] = table_.values + ids[i] * dim;
    }
    return 0;
  }

  // Every id that Locate lets pass has a row.
  void FillMissing(int64_t /*id*/, float* row) const override {
    for (int64_t c = 0; c < table_.dim; ++c) row[c] = 0;
  }

 private:
  const StaticTable table_;
};

class StaticRowSink final : public RowSink {
 public:
  explicit StaticRowSink(const StaticTable& table) : table_(table) {}

  int64_t dim() const override { return table_.dim; }
  int num_parts() const override { return 1; }
  void Ranks(const int64_t* ids, int64_t n, uint64_t* ranks) const override {
    std::copy_n(ids, n, ranks);
  }
  // Not 0 for an empty table: its Check refuses every id.
  uint64_t rank_limit() const override {
    return table_.num_rows > 0 ? table_.num_rows : 1;
  }

  absl::Status Check(const int64_t* ids, int64_t n) const override {
    uint64_t bad = 0;
    for (int64_t i = 0; i < n; ++i) bad |= !IsInTable(table_, ids[i]);
    if (bad == 0) return absl::OkStatus();
    int64_t i = 0;
    while (IsInTable(table_, ids[i])) ++i;
    return OutOfRange(table_, ids[i]);
  }

  TableHold* hold() override { return nullptr; }
  absl::Status Reserve(int /*part*/, const int64_t* /*ids*/,
                       int64_t /*n*/) override {
    return absl::OkStatus();
  }
  void Lock(int /*part*/) override {}
  void Unlock(int /*part*/) override {}

  bool refuses() const override { return false; }

  void FindOrInsert(int /*part*/, const int64_t* ids, int64_t n,
                    MutableRow* rows) override {
    for (int64_t i = 0; i < n; ++i) {
      rows[i].value = table_.values + ids[i] * table_.dim;
      for (int s = 0; s < table_.num_slots; ++s) {
        rows[i].slots[s] = table_.slots[s] +
                           ids[i] * SlotWidth(table_.row_wise, s, table_.dim);
      }
    }
  }

  int64_t num_slices() const override {
    return (table_.num_rows + kSliceRows - 1) / kSliceRows;
  }

  void VisitSlice(int64_t slice, const RowVisitor& visit) override {
    const int64_t end = std::min((slice + 1) * kSliceRows, table_.num_rows);
    int64_t ids[kVisitRows];
    MutableRow rows[kVisitRows];
    for (int64_t id = slice * kSliceRows; id < end; id += kVisitRows) {
      const int64_t n = std::min(kVisitRows, end - id);
      std::iota(ids, ids + n, id);
      FindOrInsert(0, ids, n, rows);
      visit(absl::MakeSpan(ids, n), rows);
    }
  }

 private:
  static constexpr int64_t kSliceRows = 4096;

  const StaticTable table_;
};

}  // namespace

std::unique_ptr<RowSource> ReadStaticTable(const StaticTable& table) {
  return std::make_unique<StaticRowSource>(table);
}

std::unique_ptr<RowSink> WriteStaticTable(const StaticTable& table) {
  return std::make_unique<StaticRowSink>(table);
}

}  // namespace tfembed
