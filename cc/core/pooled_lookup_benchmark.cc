// Milliseconds of a pooled lookup of 26 static tables; see testing/workload.h.
// Usage: pooled_lookup_benchmark [rows per table = 500000]

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/pooled_lookup.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/static_table.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/workload.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 64;

void Run(int64_t num_rows, bool multi_hot) {
  const Workload workload(num_rows, multi_hot);
  FloatArray values(Workload::kFeatures * num_rows * kDim, 0.01f);
  FloatArray activations(Workload::kFeatures * Workload::kBatch * kDim, 0);
  std::vector<std::unique_ptr<RowSource>> sources;
  for (int64_t f = 0; f < Workload::kFeatures; ++f) {
    StaticTable table;
    table.values = values.data() + f * num_rows * kDim;
    table.num_rows = num_rows;
    table.dim = kDim;
    sources.push_back(ReadStaticTable(table));
  }
  for (const int threads : {1, 2}) {
    ThreadExecutor executor(threads);
    const std::string name = std::string(multi_hot ? "20 ids" : "1 id") +
                             " a bag, " + std::to_string(threads) +
                             " threads, " + ActiveKernels().name;
    PrintTime(name.c_str(), 15, [&](int64_t run) {
      std::vector<PooledFeature> features;
      for (int64_t f = 0; f < Workload::kFeatures; ++f) {
        features.push_back({sources[f].get(), workload.bags(run, f),
                            activations.data() + f * kDim,
                            Workload::kFeatures * kDim});
      }
      if (!PooledLookup(features, &executor).ok()) std::abort();
    });
  }
}

}  // namespace
}  // namespace tfembed

int main(int argc, char** argv) {
  const int64_t num_rows = argc > 1 ? std::atoll(argv[1]) : 500000;
  for (const bool multi_hot : {false, true}) tfembed::Run(num_rows, multi_hot);
  return 0;
}
