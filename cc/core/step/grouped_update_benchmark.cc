// Milliseconds of an update of 26 tables, and of one of 26 features; see
// testing/workload.h.
// Usage: grouped_update_benchmark [rows per table = 500000] [rule = adagrad]
//     [static | hash] [dim = 64]

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/workload.h"

namespace tfembed {
namespace {

constexpr int64_t kFeatures = Workload::kFeatures;

void Run(BenchmarkTables* tables, const UpdateRule& rule, int64_t dim,
         const Workload& workload, const char* ids) {
  FloatArray gradients(kFeatures * Workload::kBatch * dim, 1e-3f);
  const auto bag_gradients = [&](int64_t run, int64_t f) {
    return BagGradients{workload.bags(run, f), gradients.data() + f * dim,
                        kFeatures * dim};
  };
  for (const bool one_table : {false, true}) {
    for (const int threads : {1, 2}) {
      ThreadExecutor executor(threads);
      const std::string name = std::string(ids) + " a bag, " +
                               (one_table ? "1 table, " : "26 tables, ") +
                               std::to_string(threads) + " threads";
      PrintTime(name.c_str(), 15, [&](int64_t run) {
        std::vector<std::unique_ptr<RowSink>> sinks;
        std::vector<TableUpdate> updates;
        for (int64_t f = 0; f < kFeatures; ++f) {
          if (!one_table || f == 0) {
            sinks.push_back(tables->Write(f));
            updates.push_back({sinks.back().get(), &rule, 0.01f, {}});
          }
          updates.back().features.push_back(bag_gradients(run, f));
        }
        if (!GroupedUpdate(absl::MakeSpan(updates), NonFinite::kSkip, &executor)
                 .ok()) {
          std::abort();
        }
      });
    }
  }
}

}  // namespace
}  // namespace tfembed

int main(int argc, char** argv) {
  const int64_t num_rows = argc > 1 ? std::atoll(argv[1]) : 500000;
  const std::string rule_text = argc > 2 ? argv[2] : "adagrad";
  const std::string kind = argc > 3 ? argv[3] : "static";
  const int64_t dim = argc > 4 ? std::atoll(argv[4]) : 64;
  const auto rule = tfembed::UpdateRule::Parse(rule_text).value();
  tfembed::BenchmarkTables tables(kind, tfembed::kFeatures, num_rows, dim,
                                  rule.get());
  for (const bool multi_hot : {false, true}) {
    const tfembed::Workload workload(num_rows, multi_hot);
    tfembed::Run(&tables, *rule, dim, workload, multi_hot ? "20 ids" : "1 id");
  }
  return 0;
}
