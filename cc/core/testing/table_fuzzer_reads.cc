// A fuzzer's reads, and their comparison with the model.
#include <memory>
#include <vector>

#include "cc/core/testing/table_fuzzer.h"
#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {

void TableFuzzer::CheckRow(int64_t key, const float* value,
                           const float* slot) const {
  const auto found = expected_.find(key);
  const Row row = found != expected_.end() ? found->second
                                           : Row{kInitialValue, kInitialSlot};
  for (int64_t c = 0; c < dim_; ++c) {
    ASSERT_EQ(value[c], row.value) << "key " << key << " column " << c;
    if (slot == nullptr) continue;
    ASSERT_EQ(slot[c], row.slot) << "key " << key << " column " << c;
  }
}

void TableFuzzer::Lookup() {
  for (const Part& part : Deal()) {
    std::vector<float> values(part.keys.size() * dim_);
    std::unique_ptr<bool[]> exists(new bool[part.keys.size()]);
    part.table->Lookup(part.keys, values.data(), exists.get(), executor_);
    for (size_t i = 0; i < part.keys.size(); ++i) {
      ASSERT_EQ(exists[i], expected_.count(part.keys[i]) > 0) << part.keys[i];
      CheckRow(part.keys[i], &values[i * dim_], nullptr);
    }
  }
}

void TableFuzzer::LookupTrained() {
  for (const Part& part : Deal()) {
    std::vector<float> rows(part.keys.size() * 2 * dim_);
    const absl::Status status =
        part.table->LookupTrained(part.keys, 2 * dim_, rows.data(), executor_);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < part.keys.size(); ++i) {
      const float* row = &rows[i * 2 * dim_];
      CheckRow(part.keys[i], row, row + dim_);
    }
  }
}

void TableFuzzer::Contains() {
  for (const Part& part : Deal()) {
    std::unique_ptr<bool[]> exists(new bool[part.keys.size()]);
    part.table->Contains(part.keys, exists.get(), executor_);
    for (size_t i = 0; i < part.keys.size(); ++i) {
      ASSERT_EQ(exists[i], expected_.count(part.keys[i]) > 0) << part.keys[i];
    }
  }
}

void TableFuzzer::CheckVisited(absl::Span<const int64_t> keys,
                               const float* full_rows,
                               const RowLayout& layout) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (own_keys_.count(keys[i]) == 0) continue;
    ASSERT_EQ(expected_.count(keys[i]), 1) << keys[i];
    ASSERT_TRUE(met_.insert(keys[i]).second) << keys[i] << " came twice";
    const float* row = full_rows + i * layout.width();
    CheckRow(keys[i], row, row + layout.slot_begin(0));
  }
}

void TableFuzzer::Export() {
  met_.clear();
  for (const auto& shard : shards_) {
    const ExportedRows all = ExportRows(*shard, executor_);
    CheckVisited(all.keys, all.full_rows.data(), all.layout);
  }
  ASSERT_EQ(met_.size(), expected_.size());
}

void TableFuzzer::ExportKeys() {
  int64_t own = 0, all = 0;
  for (const auto& shard : shards_) {
    std::vector<int64_t> keys;
    const auto allocate = [&](int64_t n) -> absl::StatusOr<int64_t*> {
      keys.resize(n);
      return keys.data();
    };
    ASSERT_TRUE(shard->ExportKeys(allocate, executor_).ok());
    for (int64_t key : keys) own += expected_.count(key);
    all += shard->size();
  }
  ASSERT_EQ(own, static_cast<int64_t>(expected_.size()));
  if (!options_.is_alone) return;
  ASSERT_EQ(all, own);
}

// Each key comes once.
void TableFuzzer::Visit() {
  met_.clear();
  const int64_t chunk_rows = 1 + Below(100);
  for (const auto& shard : shards_) {
    const RowLayout layout = shard->layout();
    const auto check = [&](absl::Span<const int64_t> keys, const float* rows) {
      CheckVisited(keys, rows, layout);
      return absl::OkStatus();
    };
    const absl::Status status =
        shard->Freeze()->Visit(chunk_rows, check, executor_);
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(met_.size(), expected_.size());
}

}  // namespace tfembed
