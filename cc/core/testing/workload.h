#ifndef TFEMBED_CORE_TESTING_WORKLOAD_H_
#define TFEMBED_CORE_TESTING_WORKLOAD_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/optimizers/update_rule.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/static_table.h"

namespace tfembed {

// The workload of a recommendation model: a batch of 4096 samples with 26
// features, each with a table of its own, ids drawn by Zipf's law with exponent
// 1.05 and hot rows spread over the table; one id a bag, or 10 to 30.
class Workload {
 public:
  static constexpr int64_t kFeatures = 26;
  static constexpr int64_t kBatch = 4096;

  Workload(int64_t num_rows, bool multi_hot)
      : num_batches_(multi_hot ? 4 : 16), num_rows_(num_rows) {
    std::mt19937_64 random(20261120);
    const std::vector<double> cumulative = Zipf();
    std::vector<int64_t> permutation(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) permutation[i] = i;
    std::shuffle(permutation.begin(), permutation.end(), random);
    std::uniform_int_distribution<int64_t> size(10, 30);
    std::uniform_real_distribution<double> uniform(0, 1);
    bags_.resize(num_batches_ * kFeatures);
    for (Bags& bags : bags_) {
      for (int64_t bag = 0; bag < kBatch; ++bag) {
        for (int64_t n = multi_hot ? size(random) : 1; n > 0; --n) {
          const int64_t rank =
              std::lower_bound(cumulative.begin(), cumulative.end(),
                               uniform(random)) -
              cumulative.begin();
          bags.ids.push_back(permutation[std::min(rank, num_rows - 1)]);
        }
        bags.splits.push_back(bags.ids.size());
      }
    }
  }

  int64_t num_batches() const { return num_batches_; }

  IdBags bags(int64_t batch, int64_t feature) const {
    const Bags& bags = bags_[batch % num_batches_ * kFeatures + feature];
    return {bags.ids.data(), bags.splits.data(), nullptr, kBatch,
            Combiner::kMean};
  }

 private:
  struct Bags {
    std::vector<int64_t> ids;
    std::vector<int64_t> splits = {0};
  };

  std::vector<double> Zipf() const {
    std::vector<double> cumulative(num_rows_);
    double sum = 0;
    for (int64_t i = 0; i < num_rows_; ++i) {
      cumulative[i] = sum += std::pow(i + 1.0, -1.05);
    }
    for (double& c : cumulative) c /= sum;
    return cumulative;
  }

  const int64_t num_batches_;
  const int64_t num_rows_;
  std::vector<Bags> bags_;
};

// n floats on huge pages.
class FloatArray {
 public:
  FloatArray(int64_t n, float value)
      : block_(MemoryBlock::Allocate(n * sizeof(float)).value()) {
    std::fill_n(data(), n, value);
  }

  float* data() { return reinterpret_cast<float*>(block_.data()); }

 private:
  MemoryBlock block_;
};

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

// Runs body(0), body(1), ... and prints the median and the least time of a run.
inline void PrintTime(const char* name, int64_t runs,
                      const std::function<void(int64_t)>& body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int64_t run = -3; run < runs; ++run) {
    const Clock::time_point start = Clock::now();
    body(run + 3);
    const std::chrono::duration<double, std::milli> time = Clock::now() - start;
    if (run >= 0) times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-40s median %7.2f ms, least %7.2f ms\n", name,
              times[times.size() / 2], times[0]);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_WORKLOAD_H_
