// Lookups in a mapped sealed table beside a table in memory, and rows of bytes
// beside rows of floats, a row and a bag of 20 rows at a time.
//
//   sealed_table_benchmark [million keys] [width] [folder for two files]
//
// Rounds of all are interleaved, so that ratios hold on a busy machine; each
// figure is the fastest round.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/rows/initial_rows.h"
#include "cc/core/sealed/sealed_table.h"
#include "cc/core/support/half.h"
#include "cc/core/support/hash.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/sealed_bytes.h"
#include "cc/core/testing/thread_executor.h"

namespace tfembed {
namespace {

constexpr int64_t kBatch = 65536;
constexpr int64_t kBag = 20;
constexpr int kRounds = 9;

// Of the processor, so that other programs count little.
double Seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

int64_t KeyAt(int64_t i) { return static_cast<int64_t>(HashKey(i + 1)); }

// The bytes of a file, mapped after they were written there.
std::pair<const char*, int64_t> Mapped(const std::string& path,
                                       const LineBytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr ||
      std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fclose(file) != 0) {
    std::perror(path.c_str());
    std::exit(1);
  }
  const int descriptor = open(path.c_str(), O_RDONLY);
  void* mapped =
      mmap(nullptr, bytes.size(), PROT_READ, MAP_SHARED, descriptor, 0);
  close(descriptor);
  return {static_cast<const char*>(mapped), bytes.size()};
}

std::unique_ptr<SealedTable> Opened(const std::string& path,
                                    const TableToSeal& table) {
  const auto [bytes, size] = Mapped(path, SealedBytes(table));
  std::string fault;
  const double start = Seconds();
  auto opened = SealedTable::Open(bytes, size, &fault);
  const int64_t key = KeyAt(0);
  std::vector<float> row(table.dim);
  opened->Find(&key, 1, row.data(), nullptr);
  std::printf("%s: %.1f MB, opened and one row read in %.2f ms\n", path.c_str(),
              size / 1e6, (Seconds() - start) * 1e3);
  return opened;
}

void Run(int64_t num_keys, int64_t dim, const std::string& folder) {
  TableToSeal floats;
  floats.dim = dim;
  while (floats.regions * 65536 < num_keys) floats.regions *= 2;
  for (int64_t i = 0; i < num_keys; ++i) floats.keys.push_back({KeyAt(i), 0});
  floats.write_row = [dim](int64_t i, char* row) {
    for (int64_t j = 0; j < dim; ++j) {
      const auto number = static_cast<float>((i + j) % 256);
      std::memcpy(row + 4 * j, &number, 4);
    }
  };
  TableToSeal steps = floats;
  steps.has_steps = true;
  steps.write_row = [dim](int64_t i, char* row) {
    const uint16_t scales[] = {Half::Of(0).bits, Half::Of(1).bits};
    std::memcpy(row, scales, 4);
    for (int64_t j = 0; j < dim; ++j) row[4 + j] = static_cast<char>(i + j);
  };
  const auto by_floats = Opened(folder + "/floats.sealed", floats);
  const auto by_steps = Opened(folder + "/steps.sealed", steps);

  ThreadExecutor executor(1);
  EmbeddingTable::Options options;
  options.dim = dim;
  auto created = EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0}, /*seed=*/1, dim));
  EmbeddingTable& memory = **created;
  const LineBytes output(kBatch * dim * 4);
  auto* const rows = reinterpret_cast<float*>(output.data());
  std::vector<int64_t> keys(kBatch);
  for (int64_t begin = 0; begin < num_keys; begin += kBatch) {
    const int64_t n = std::min(kBatch, num_keys - begin);
    for (int64_t i = 0; i < n; ++i) keys[i] = KeyAt(begin + i);
    if (!memory.Upsert({keys.data(), static_cast<size_t>(n)}, rows, &executor)
             .ok()) {
      std::abort();
    }
  }
  std::unique_ptr<bool[]> in_memory(new bool[kBatch]);
  std::vector<uint8_t> exists(kBatch);
  std::vector<float> sums(dim);
  float total = 0;  // So that no sum is left out.
  const auto bags = [&](const SealedTable& table) {
    // A server's request: some bags, whose rows stay in the caches.
    constexpr int64_t kKeys = 32 * kBag;
    for (int64_t at = 0; at + kKeys <= kBatch; at += kKeys) {
      table.Find(keys.data() + at, kKeys, rows, exists.data());
      for (int64_t bag = 0; bag < kKeys; bag += kBag) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t i = bag; i < bag + kBag; ++i) {
          for (int64_t j = 0; j < dim; ++j) sums[j] += rows[i * dim + j];
        }
        total += sums[0];
      }
    }
  };
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"table in memory",
       [&] { memory.Lookup(keys, rows, in_memory.get(), &executor); }},
      {"mapped, floats",
       [&] { by_floats->Find(keys.data(), kBatch, rows, exists.data()); }},
      {"mapped, bytes",
       [&] { by_steps->Find(keys.data(), kBatch, rows, exists.data()); }},
      {"bags of floats", [&] { bags(*by_floats); }},
      {"bags of bytes", [&] { bags(*by_steps); }},
  };
  std::vector<double> best(cases.size(), 1e9);
  uint64_t random = 7;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t c = 0; c < cases.size(); ++c) {
      for (int64_t& key : keys) {  // One in ten is not there.
        random = MixBits(random + 0x9e3779b97f4a7c15ULL);
        const int64_t i = (random >> 8) % num_keys;
        key = KeyAt(random % 10 == 0 ? num_keys + i : i);
      }
      const double start = Seconds();
      cases[c].second();
      best[c] = std::min(best[c], Seconds() - start);
    }
  }
  for (size_t c = 0; c < cases.size(); ++c) {
    std::printf("%-16s %7.1f ns a key, %.2f M keys/s\n", cases[c].first,
                best[c] / kBatch * 1e9, kBatch / best[c] / 1e6);
  }
  std::printf(
      "mapped / memory, rate: %.2f\nbytes / floats, time: a row %.2f, a bag "
      "of 20 %.2f\n(%g)\n",
      best[0] / best[1], best[2] / best[1], best[4] / best[3], total);
}

}  // namespace
}  // namespace tfembed

int main(int argc, char** argv) {
  tfembed::Run(static_cast<int64_t>((argc > 1 ? std::atof(argv[1]) : 1) * 1e6),
               argc > 2 ? std::atoll(argv[2]) : 64,
               argc > 3 ? argv[3] : "/tmp");
}
