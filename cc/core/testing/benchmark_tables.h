#ifndef TFEMBED_CORE_TESTING_BENCHMARK_TABLES_H_
#define TFEMBED_CORE_TESTING_BENCHMARK_TABLES_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/optimizers/update_rule.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/static_table.h"
#include "cc/core/testing/workload.h"

namespace tfembed {

// Tables that hold the ids 0 to rows - 1: "static" ones, or "hash" tables. All
// values are 0.01.
class BenchmarkTables {
 public:
  // `rule`: whose slots they have, or null.
  BenchmarkTables(const std::string& kind, int64_t tables, int64_t rows,
                  int64_t dim, const UpdateRule* rule) {
    for (int64_t t = 0; t < tables; ++t) {
      if (kind == "hash") {
        AddHash(rows, dim, rule);
      } else {
        AddStatic(rows, dim, rule);
      }
    }
  }

  std::unique_ptr<RowSource> Read(int64_t t) const {
    return hash_.empty() ? ReadStaticTable(static_[t]) : hash_[t]->Read();
  }

  std::unique_ptr<RowSink> Write(int64_t t) {
    return hash_.empty() ? WriteStaticTable(static_[t]) : hash_[t]->Write();
  }

 private:
  float* NewFloats(int64_t n, float value) {
    floats_.push_back(std::make_unique<FloatArray>(n, value));
    return floats_.back()->data();
  }

  void AddStatic(int64_t rows, int64_t dim, const UpdateRule* rule) {
    StaticTable table;
    table.values = NewFloats(rows * dim, 0.01f);
    table.num_rows = rows;
    table.dim = dim;
    if (rule != nullptr) {
      table.num_slots = rule->slot_names().size();
      table.row_wise = rule->row_wise_slots();
      for (int s = 0; s < table.num_slots; ++s) {
        table.slots[s] = NewFloats(rows * SlotWidth(table.row_wise, s, dim),
                                   rule->slot_initial_values()[s]);
      }
    }
    static_.push_back(table);
  }

  void AddHash(int64_t rows, int64_t dim, const UpdateRule* rule) {
    EmbeddingTable::Options options;
    options.dim = dim;
    auto initial = InitialRows::Create("constant", {0.01f}, 0, dim, {});
    auto table = EmbeddingTable::Create(options, *std::move(initial)).value();
    if (rule != nullptr) {
      SlotLayout slots;
      slots.owner = "rule";
      slots.names = rule->slot_names();
      slots.initial_values = rule->slot_initial_values();
      slots.row_wise = rule->row_wise_slots();
      if (!table->SetSlots(slots).ok()) std::abort();
    }
    constexpr int64_t kBatch = 1 << 16;
    const std::vector<float> values(kBatch * dim, 0.01f);
    std::vector<int64_t> keys;
    for (int64_t first = 0; first < rows; first += kBatch) {
      keys.clear();
      for (int64_t id = first; id < std::min(rows, first + kBatch); ++id) {
        keys.push_back(id);
      }
      if (!table->Upsert(keys, values.data(), nullptr).ok()) std::abort();
    }
    hash_.push_back(std::move(table));
  }

  std::vector<std::unique_ptr<FloatArray>> floats_;
  std::vector<StaticTable> static_;
  std::vector<std::unique_ptr<EmbeddingTable>> hash_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_BENCHMARK_TABLES_H_
