#ifndef TFEMBED_CORE_TESTING_TABLE_FUZZER_H_
#define TFEMBED_CORE_TESTING_TABLE_FUZZER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {

// Random operations on a table of one or more shards, each compared with what a
// std::unordered_map says. Rows have one slot; all columns of a value, and of a
// slot, hold one whole number, so that sums are exact in float32.
//
// Several fuzzers may work on one table at once, each with keys of its own:
// they leave out what concerns the keys of all.
class TableFuzzer {
 public:
  using Shards = std::vector<std::unique_ptr<EmbeddingTable>>;

  // Shards with rows for fuzzers. max_size: of each; 0: no bound.
  static Shards NewTable(int64_t dim, int num_shards, int64_t max_size = 0);

  struct Options {
    uint32_t seed = 0;
    std::vector<int64_t> keys;  // The fuzzer's own.
    bool is_alone = true;       // On the table.
    int64_t max_size = 0;       // The table has one shard then; 0: no bound.
  };

  static constexpr float kInitialValue = -1;
  static constexpr float kInitialSlot = 3;

  // Borrows `shards` and `executor`.
  TableFuzzer(const Options& options, Shards* shards, Executor* executor);

  // One operation on a random batch. Fails the test where the table differs.
  void Step();

  // Compares everything.
  void CheckAll();

 private:
  struct Row {
    float value;
    float slot;
  };
  // The part of the batch in one shard.
  struct Part {
    EmbeddingTable* table;
    std::vector<int64_t> keys;
    std::vector<size_t> positions;  // In keys_.
  };

  uint32_t Below(uint32_t n) { return random_() % n; }
  float Number() { return static_cast<float>(Below(1000)) - 500; }
  void Draw();
  std::vector<Part> Deal() const;
  std::vector<float> Rows(const Part& part, int64_t slots, int64_t meta) const;
  Row& Insert(int64_t key);
  void ForgetEvicted();
  void CheckRow(int64_t key, const float* value, const float* slot) const;
  void CheckVisited(absl::Span<const int64_t> keys, const float* full_rows,
                    const RowLayout& layout);

  void Upsert();
  void Accum();
  void Import();
  void WriteTrained();
  void Train();
  void Remove();
  void Clear();
  void Lookup();
  void LookupTrained();
  void Contains();
  void Export();
  void ExportKeys();
  void Visit();

  const Options options_;
  Shards& shards_;
  Executor* const executor_;
  const int64_t dim_;
  std::mt19937 random_;
  const std::unordered_set<int64_t> own_keys_;
  std::unordered_map<int64_t, Row> expected_;
  int64_t evicted_ = 0;

  // The batch.
  std::vector<int64_t> keys_;
  std::vector<Row> rows_;

  // Keys that Export and Visit have met.
  std::unordered_set<int64_t> met_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_TABLE_FUZZER_H_
