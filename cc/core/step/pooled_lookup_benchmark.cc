// Milliseconds of a pooled lookup of 26 tables; see testing/workload.h.
// Usage: pooled_lookup_benchmark [rows per table = 500000] [static | hash]
//     [dim = 64]

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/simd/dispatch.h"
#include "cc/core/step/pooled_lookup.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/workload.h"

namespace tfembed {
namespace {

constexpr int64_t kFeatures = Workload::kFeatures;

void Run(const BenchmarkTables& tables, int64_t dim, const Workload& workload,
         const char* ids) {
  // A feature's bags are one tensor, as TensorFlow has them.
  constexpr int64_t kBatch = Workload::kBatch;
  FloatArray activations(kFeatures * kBatch * dim, 0);
  for (const int threads : {1, 2}) {
    ThreadExecutor executor(threads);
    const std::string name = std::string(ids) + " a bag, " +
                             std::to_string(threads) + " threads, " +
                             ActiveKernels().name;
    PrintTime(name.c_str(), 15, [&](int64_t run) {
      std::vector<std::unique_ptr<RowSource>> sources;
      std::vector<PooledFeature> features;
      for (int64_t f = 0; f < kFeatures; ++f) {
        sources.push_back(tables.Read(f));
        features.push_back({sources[f].get(), workload.bags(run, f),
                            activations.data() + f * kBatch * dim, dim});
      }
      if (!PooledLookup(features, &executor).ok()) std::abort();
    });
  }
}

}  // namespace
}  // namespace tfembed

int main(int argc, char** argv) {
  const int64_t num_rows = argc > 1 ? std::atoll(argv[1]) : 500000;
  const std::string kind = argc > 2 ? argv[2] : "static";
  const int64_t dim = argc > 3 ? std::atoll(argv[3]) : 64;
  const tfembed::BenchmarkTables tables(kind, tfembed::kFeatures, num_rows, dim,
                                        nullptr);
  for (const bool multi_hot : {false, true}) {
    const tfembed::Workload workload(num_rows, multi_hot);
    tfembed::Run(tables, dim, workload, multi_hot ? "20 ids" : "1 id");
  }
  return 0;
}
