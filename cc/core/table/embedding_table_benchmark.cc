// Finds, upserts, inserts and removes 10M random keys in batches of 65,536, the
// workload of the published comparisons of hash tables:
//
//   embedding_table_benchmark [keys in millions] [widths] [threads]
//   embedding_table_benchmark 10 8,64 1,2
//
// Prints M keys/s, the median of the passes and their range, and bytes a key.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/support/hash.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/thread_executor.h"

namespace tfembed {
namespace {

constexpr int64_t kBatch = 65536;
constexpr int64_t kBatchesPerPass = 64;
constexpr int kPasses = 5;

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Resident memory, in bytes.
double ResidentBytes() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
  std::fclose(file);
  return static_cast<double>(pages) * sysconf(_SC_PAGESIZE);
}

int64_t RandomKey(int64_t i) {
  return static_cast<int64_t>(MixBits(i * 0x9e3779b97f4a7c15ULL + 1));
}

struct Workload {
  int64_t num_keys;
  int64_t dim;
  Executor* executor;
};

void Print(const Workload& workload, const char* operation,
           std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  std::printf("%-14s width %3d  threads %d  %6.1f M keys/s  (%.1f - %.1f)\n",
              operation, static_cast<int>(workload.dim),
              workload.executor->num_threads(), rates[rates.size() / 2] / 1e6,
              rates.front() / 1e6, rates.back() / 1e6);
  std::fflush(stdout);
}

// Times kPasses passes of kBatchesPerPass batches of keys drawn by `draw`.
void TimePasses(const Workload& workload, const char* operation,
                const std::function<int64_t(uint64_t)>& draw,
                const std::function<void(absl::Span<const int64_t>)>& run) {
  std::vector<int64_t> keys(kBatch * kBatchesPerPass);
  std::vector<double> rates;
  uint64_t drawn = 0;
  for (int pass = -1; pass < kPasses; ++pass) {
    for (int64_t& key : keys) key = draw(MixBits(++drawn));
    const double start = Seconds();
    for (int64_t b = 0; b < kBatchesPerPass; ++b) {
      run(absl::MakeSpan(keys).subspan(b * kBatch, kBatch));
    }
    const double rate = keys.size() / (Seconds() - start);
    if (pass >= 0) rates.push_back(rate);  // The first warms up.
  }
  Print(workload, operation, rates);
}

void Insert(EmbeddingTable* table, const Workload& workload,
            const char* operation, const std::vector<float>& values) {
  std::vector<double> rates;
  std::vector<int64_t> keys(kBatch);
  double seconds = 0;
  for (int64_t begin = 0; begin < workload.num_keys; begin += kBatch) {
    const int64_t n = std::min(kBatch, workload.num_keys - begin);
    for (int64_t i = 0; i < n; ++i) keys[i] = RandomKey(begin + i);
    const double start = Seconds();
    if (!table
             ->Upsert(absl::MakeSpan(keys).subspan(0, n), values.data(),
                      workload.executor)
             .ok()) {
      std::fprintf(stderr, "no memory\n");
      std::exit(1);
    }
    seconds += Seconds() - start;
    rates.push_back(n / (Seconds() - start));
  }
  std::sort(rates.begin(), rates.end());
  std::printf(
      "%-14s width %3d  threads %d  %6.1f M keys/s  (batches: p1 %.1f, "
      "median %.1f)\n",
      operation, static_cast<int>(workload.dim),
      workload.executor->num_threads(), workload.num_keys / seconds / 1e6,
      rates[rates.size() / 100] / 1e6, rates[rates.size() / 2] / 1e6);
}

void Run(const Workload& workload) {
  std::vector<float> values(kBatch * workload.dim, 1.0f);
  std::unique_ptr<char[]> memory(new char[kBatch * workload.dim * 4 + 64]());
  auto* found = reinterpret_cast<float*>(
      (reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
  std::unique_ptr<bool[]> exists(new bool[kBatch]());
  Executor* executor = workload.executor;
  const double resident = ResidentBytes();
  auto initial_rows =
      InitialRows::Create("constant", {0.0f}, /*seed=*/1, workload.dim);
  EmbeddingTable::Options options;
  options.dim = workload.dim;
  auto created = EmbeddingTable::Create(options, *std::move(initial_rows));
  EmbeddingTable& table = **created;
  const auto present = [&](uint64_t random) {
    return RandomKey(random % workload.num_keys);
  };
  const auto half = [&](uint64_t random) {
    return RandomKey((random >> 1) % workload.num_keys +
                     (random & 1) * workload.num_keys);
  };
  const auto lookup = [&](absl::Span<const int64_t> keys) {
    table.Lookup(keys, found, exists.get(), executor);
  };

  Insert(&table, workload, "insert", values);
  const TableStats stats = table.stats();
  std::printf("bytes a key: %.1f resident, index %.1f, rows %.1f\n",
              (ResidentBytes() - resident) / stats.size,
              static_cast<double>(stats.index_bytes) / stats.size,
              static_cast<double>(stats.row_bytes) / stats.size);
  TimePasses(workload, "find", present, lookup);
  TimePasses(workload, "find half", half, lookup);
  TimePasses(workload, "upsert", present, [&](absl::Span<const int64_t> keys) {
    (void)table.Upsert(keys, values.data(), executor);
  });
  TimePasses(workload, "remove", present, [&](absl::Span<const int64_t> keys) {
    table.Remove(keys, executor);
  });
  Insert(&table, workload, "insert again", values);
}

std::vector<int64_t> Numbers(const char* list) {
  std::vector<int64_t> numbers;
  for (char* rest = const_cast<char*>(list); *rest != '\0';) {
    numbers.push_back(std::strtoll(rest, &rest, 10));
    if (*rest == ',') ++rest;
  }
  return numbers;
}

}  // namespace
}  // namespace tfembed

int main(int argc, char** argv) {
  const double millions = argc > 1 ? std::atof(argv[1]) : 10;
  for (int64_t dim : tfembed::Numbers(argc > 2 ? argv[2] : "8,64")) {
    for (int64_t threads : tfembed::Numbers(argc > 3 ? argv[3] : "1,2")) {
      tfembed::ThreadExecutor executor(static_cast<int>(threads));
      tfembed::Run({static_cast<int64_t>(millions * 1e6), dim, &executor});
    }
  }
  return 0;
}
