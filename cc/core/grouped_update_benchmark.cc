// Milliseconds of an update of 26 static tables, and of one of 26 features;
// see testing/workload.h.
// Usage: grouped_update_benchmark [rows per table = 500000] [rule = adagrad]

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/grouped_update.h"
#include "cc/core/static_table.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/workload.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 64;
constexpr int64_t kFeatures = Workload::kFeatures;

struct Tables {
  Tables(int64_t num_rows, const std::string& rule_text)
      : rule(UpdateRule::Parse(rule_text).value()),
        values(kFeatures * num_rows * kDim, 0.01f) {
    const int num_slots = rule->slot_names().size();
    const SlotSet row_wise = rule->row_wise_slots();
    for (int s = 0; s < num_slots; ++s) {
      slots.emplace_back(kFeatures * num_rows * SlotWidth(row_wise, s, kDim),
                         rule->slot_initial_values()[s]);
    }
    for (int64_t f = 0; f < kFeatures; ++f) {
      StaticTable table;
      const int64_t first_row = f * num_rows;
      table.values = values.data() + first_row * kDim;
      for (int s = 0; s < num_slots; ++s) {
        table.slots[s] =
            slots[s].data() + first_row * SlotWidth(row_wise, s, kDim);
      }
      table.num_slots = num_slots;
      table.row_wise = row_wise;
      table.num_rows = num_rows;
      table.dim = kDim;
      sinks.push_back(WriteStaticTable(table));
    }
  }

  const std::unique_ptr<UpdateRule> rule;
  FloatArray values;
  std::vector<FloatArray> slots;
  std::vector<std::unique_ptr<RowSink>> sinks;
};

void Run(Tables* tables, int64_t num_rows, bool multi_hot) {
  const Workload workload(num_rows, multi_hot);
  FloatArray gradients(kFeatures * Workload::kBatch * kDim, 1e-3f);
  const auto bag_gradients = [&](int64_t run, int64_t f) {
    return BagGradients{workload.bags(run, f), gradients.data() + f * kDim,
                        kFeatures * kDim};
  };
  for (const bool one_table : {false, true}) {
    for (const int threads : {1, 2}) {
      ThreadExecutor executor(threads);
      const std::string name = std::string(multi_hot ? "20 ids" : "1 id") +
                               " a bag, " +
                               (one_table ? "1 table, " : "26 tables, ") +
                               std::to_string(threads) + " threads";
      PrintTime(name.c_str(), 15, [&](int64_t run) {
        std::vector<TableUpdate> updates;
        for (int64_t f = 0; f < kFeatures; ++f) {
          if (!one_table || f == 0) {
            updates.push_back(
                {tables->sinks[f].get(), tables->rule.get(), 0.01f, {}});
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
  tfembed::Tables tables(num_rows, argc > 2 ? argv[2] : "adagrad");
  for (const bool multi_hot : {false, true}) {
    tfembed::Run(&tables, num_rows, multi_hot);
  }
  return 0;
}
