#include "cc/core/testing/table_fuzzer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int64_t DimOf(const TableFuzzer::Shards& shards) { return shards[0]->dim(); }

}  // namespace

TableFuzzer::Shards TableFuzzer::NewTable(int64_t dim, int num_shards,
                                          int64_t max_size) {
  Shards shards;
  for (int s = 0; s < num_shards; ++s) {
    EmbeddingTable::Options options;
    options.dim = dim;
    options.max_size = max_size;
    if (max_size > 0) options.eviction = "least_recent";
    auto rows = InitialRows::Create("constant", {kInitialValue}, 1, dim);
    auto table = EmbeddingTable::Create(options, *std::move(rows));
    EXPECT_TRUE(table.ok()) << table.status();
    EXPECT_TRUE((*table)->SetSlots({"fuzz", {"slot"}, {kInitialSlot}}).ok());
    shards.push_back(*std::move(table));
  }
  return shards;
}

TableFuzzer::TableFuzzer(const Options& options, Shards* shards,
                         Executor* executor)
    : options_(options),
      shards_(*shards),
      executor_(executor),
      dim_(DimOf(*shards)),
      random_(options.seed),
      own_keys_(options.keys.begin(), options.keys.end()) {}

void TableFuzzer::Step() {
  Draw();
  switch (Below(16)) {
    case 0:
    case 1:
    case 2:
      Upsert();
      break;
    case 3:
    case 4:
      Accum();
      break;
    case 5:
      Import();
      break;
    case 6:
      WriteTrained();
      break;
    case 7:
    case 8:
    case 9:
      Train();
      break;
    case 10:
    case 11:
      return Remove();
    case 12:
      return LookupTrained();
    case 13:
      return Contains();
    case 14:
      if (Below(32) > 0) return Lookup();
      if (options_.is_alone && Below(16) == 0) return Clear();
      return Below(3) == 0 ? Export() : Below(2) == 0 ? ExportKeys() : Visit();
    default:
      return Lookup();
  }
  if (options_.max_size > 0) ForgetEvicted();
}

void TableFuzzer::CheckAll() {
  Export();
  ExportKeys();
  Visit();
  keys_ = options_.keys;
  Lookup();
  LookupTrained();
}

void TableFuzzer::Draw() {
  const bool is_large = options_.max_size == 0 && Below(64) == 0;
  keys_.resize(is_large ? Below(3000) : Below(32));
  rows_.resize(keys_.size());
  for (int64_t& key : keys_) key = options_.keys[Below(options_.keys.size())];
  for (Row& row : rows_) row = {Number(), Number()};
}

std::vector<TableFuzzer::Part> TableFuzzer::Deal() const {
  const int64_t n = shards_.size();
  std::vector<Part> parts(n);
  for (int64_t s = 0; s < n; ++s) parts[s].table = shards_[s].get();
  for (size_t i = 0; i < keys_.size(); ++i) {
    Part& part = parts[(keys_[i] % n + n) % n];
    part.keys.push_back(keys_[i]);
    part.positions.push_back(i);
  }
  return parts;
}

// The part's rows: values, so many slots, so many other words.
std::vector<float> TableFuzzer::Rows(const Part& part, int64_t slots,
                                     int64_t meta) const {
  std::vector<float> rows;
  for (size_t i : part.positions) {
    rows.insert(rows.end(), dim_, rows_[i].value);
    rows.insert(rows.end(), slots * dim_, rows_[i].slot);
    rows.insert(rows.end(), meta, 0.0f);
  }
  return rows;
}

TableFuzzer::Row& TableFuzzer::Insert(int64_t key) {
  return expected_.try_emplace(key, Row{kInitialValue, kInitialSlot})
      .first->second;
}

// A bounded table chooses what goes, but not from the batch, and counts it.
void TableFuzzer::ForgetEvicted() {
  ASSERT_LE(shards_[0]->size(), options_.max_size);
  std::vector<int64_t> keys;
  for (const auto& entry : expected_) keys.push_back(entry.first);
  std::unique_ptr<bool[]> exists(new bool[keys.size()]);
  shards_[0]->Contains(keys, exists.get(), executor_);
  const std::unordered_set<int64_t> batch(keys_.begin(), keys_.end());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (exists[i]) continue;
    ASSERT_EQ(batch.count(keys[i]), 0) << keys[i];
    expected_.erase(keys[i]);
    ++evicted_;
  }
  ASSERT_EQ(shards_[0]->use().evicted, evicted_);
}

void TableFuzzer::Upsert() {
  for (const Part& part : Deal()) {
    const std::vector<float> rows = Rows(part, 0, 0);
    const absl::Status status =
        part.table->Upsert(part.keys, rows.data(), executor_);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < keys_.size(); ++i) {
    Insert(keys_[i]).value = rows_[i].value;
  }
}

void TableFuzzer::Accum() {
  std::unique_ptr<bool[]> exists(new bool[keys_.size()]);
  for (size_t i = 0; i < keys_.size(); ++i) exists[i] = Below(2) == 0;
  const float old = Below(3);  // Where it is 0 there are no old values.
  for (const Part& part : Deal()) {
    std::unique_ptr<bool[]> flags(new bool[part.keys.size()]);
    for (size_t i = 0; i < part.keys.size(); ++i) {
      flags[i] = exists[part.positions[i]];
    }
    const std::vector<float> rows = Rows(part, 0, 0);
    const std::vector<float> old_rows(rows.size(), old);
    const absl::Status status = part.table->Accum(
        part.keys, rows.data(), old == 0 ? nullptr : old_rows.data(),
        flags.get(), executor_);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < keys_.size(); ++i) {
    const bool is_there = expected_.count(keys_[i]) > 0;
    if (is_there != exists[i]) continue;
    Row& row = Insert(keys_[i]);
    row.value = is_there ? row.value + rows_[i].value - old : rows_[i].value;
  }
}

void TableFuzzer::Import() {
  for (const Part& part : Deal()) {
    const RowLayout layout = part.table->layout();
    const absl::Status status =
        part.table->Import(part.keys, layout.width(),
                           Rows(part, 1, layout.meta_words).data(), executor_);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < keys_.size(); ++i) expected_[keys_[i]] = rows_[i];
}

void TableFuzzer::WriteTrained() {
  const bool add = Below(2) == 0;
  for (const Part& part : Deal()) {
    const absl::Status status = part.table->WriteTrained(
        part.keys, 2 * dim_, Rows(part, 1, 0).data(), add, executor_);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < keys_.size(); ++i) {
    Row& row = Insert(keys_[i]);
    if (!add) row = {0, 0};
    row.value += rows_[i].value;
    row.slot += rows_[i].slot;
  }
}

// SGD of rate 1 takes the gradient away. Some gradients are not finite.
void TableFuzzer::Train() {
  const bool sums = Below(2) == 0;
  const auto rule = UpdateRule::Parse(sums ? "sgd" : "sgd accumulate=0");
  if (Below(4) == 0) {
    for (Row& row : rows_) row.value = Below(4) == 0 ? kNan : row.value;
  }
  const std::vector<Part> parts = Deal();
  std::vector<std::vector<float>> gradients;
  std::vector<std::unique_ptr<RowSink>> sinks;
  std::vector<TableUpdate> updates;
  for (const Part& part : parts) {
    gradients.push_back(Rows(part, 0, 0));
    sinks.push_back(part.table->Write());
    TableUpdate update;
    update.sink = sinks.back().get();
    update.rule = rule->get();
    update.learning_rate = 1;
    IdBags bags;
    bags.ids = part.keys.data();
    bags.num_bags = part.keys.size();
    update.features = {{bags, gradients.back().data(), dim_}};
    updates.push_back(std::move(update));
  }
  const absl::Status status =
      GroupedUpdate(absl::MakeSpan(updates), NonFinite::kSkip, executor_);
  ASSERT_TRUE(status.ok()) << status;
  std::unordered_map<int64_t, float> trained;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (!sums && std::isnan(rows_[i].value)) continue;
    trained[keys_[i]] += rows_[i].value;
  }
  keys_.clear();  // Other keys of the batch need not stay.
  for (const auto& [key, gradient] : trained) {
    if (std::isnan(gradient)) continue;
    Insert(key).value -= gradient;
    keys_.push_back(key);
  }
}

void TableFuzzer::Remove() {
  const bool evict = Below(2) == 0;
  for (const Part& part : Deal()) {
    if (evict) {
      part.table->Evict(part.keys, executor_);
    } else {
      part.table->Remove(part.keys, executor_);
    }
  }
  for (int64_t key : keys_) {
    const bool was_there = expected_.erase(key) > 0;
    evicted_ += evict && was_there;
  }
}

void TableFuzzer::Clear() {
  for (auto& shard : shards_) shard->Clear();
  expected_.clear();
}

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
