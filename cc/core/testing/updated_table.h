#ifndef TFEMBED_CORE_TESTING_UPDATED_TABLE_H_
#define TFEMBED_CORE_TESTING_UPDATED_TABLE_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/table/static_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/kernels_test_base.h"
#include "cc/core/testing/map_table.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {

inline constexpr float kUpdateRate = 0.05f;

// A table of either kind under a rule, the features that update it, and its
// rows as they were.
class UpdatedTable {
 public:
  UpdatedTable(bool is_static, int64_t dim, int64_t num_rows,
               const std::string& rule)
      : dim(dim),
        rule_text(rule),
        features(dim),
        rule_(UpdateRule::Parse(rule).value()),
        num_slots_(rule_->slot_names().size()),
        map_(dim, rule_->slot_initial_values()),
        values_(RandomFloats(num_rows * dim, 11)) {
    if (!is_static) return;
    StaticTable table;
    table.name = "user";
    table.values = values_.data();
    table.num_rows = num_rows;
    table.dim = dim;
    table.num_slots = num_slots_;
    for (int s = 0; s < num_slots_; ++s) {
      slots_[s].assign(num_rows * dim, rule_->slot_initial_values()[s]);
      table.slots[s] = slots_[s].data();
    }
    static_ = WriteStaticTable(table);
  }

  TableUpdate Update() {
    TableUpdate update;
    update.sink = static_ != nullptr ? static_.get() : &map_;
    update.rule = rule_.get();
    update.learning_rate = kUpdateRate;
    update.features = features.features();
    return update;
  }

  // The row's value (slot -1) or slot; initial ones where it is missing.
  std::vector<float> Row(int64_t id, int slot = -1) const {
    std::vector<float> row(dim);
    if (static_ != nullptr) {
      const auto& array = slot < 0 ? values_ : slots_[slot];
      row.assign(array.begin() + id * dim, array.begin() + (id + 1) * dim);
    } else if (const float* full = map_.Find(id)) {
      row.assign(full + dim * (1 + slot), full + dim * (2 + slot));
    } else if (slot < 0) {
      map_.FillMissing(id, row.data());
    } else {
      row.assign(dim, rule_->slot_initial_values()[slot]);
    }
    return row;
  }

  // Rows [0, n) of values and slots.
  std::vector<std::vector<float>> Rows(int64_t n) const {
    std::vector<std::vector<float>> rows;
    for (int64_t id = 0; id < n; ++id) {
      for (int slot = -1; slot < num_slots_; ++slot) {
        rows.push_back(Row(id, slot));
      }
    }
    return rows;
  }

  MapTable& map() { return map_; }

  const int64_t dim;
  const std::string rule_text;
  GradientFeatures features;

 private:
  std::unique_ptr<UpdateRule> rule_;
  const int num_slots_;
  MapTable map_;
  std::vector<float> values_;
  std::vector<float> slots_[kMaxSlots];
  std::unique_ptr<RowSink> static_;
};

// A test of updates of tables of either kind, by the kernels of each
// instruction set.
class UpdateTest : public KernelsTestBase<std::tuple<const char*, bool>> {
 protected:
  bool is_static() const { return std::get<1>(GetParam()); }

  ThreadExecutor executor_{2};
};

inline auto UpdateTargets() {
  return testing::Combine(testing::Values("baseline", "avx2", "avx512"),
                          testing::Bool());
}

inline std::string NameOfTarget(
    const testing::TestParamInfo<UpdateTest::ParamType>& target) {
  return std::string(std::get<0>(target.param)) +
         (std::get<1>(target.param) ? "Static" : "Map");
}

inline absl::Status RunStep(std::vector<UpdatedTable*> tables,
                            Executor* executor,
                            NonFinite nonfinite = NonFinite::kSkip,
                            std::vector<int64_t>* nonfinite_rows = nullptr,
                            absl::Span<const NormLimit> limits = {}) {
  std::vector<TableUpdate> updates;
  for (UpdatedTable* table : tables) {
    updates.push_back(table->Update());
    updates.back().name = "table " + std::to_string(updates.size() - 1);
  }
  const absl::Status status =
      GroupedUpdate(absl::MakeSpan(updates), nonfinite, executor, limits);
  for (const TableUpdate& update : updates) {
    if (nonfinite_rows) nonfinite_rows->push_back(update.nonfinite_rows);
  }
  return status;
}

// Expects that SGD or Adagrad moved the rows [0, n) from `before` as it must.
inline void ExpectUpdated(const UpdatedTable& table, int64_t n,
                          const std::vector<std::vector<float>>& before) {
  const bool is_adagrad = table.rule_text == "adagrad";
  const auto sums = table.features.Sums();
  const int64_t arrays = is_adagrad ? 2 : 1;
  for (int64_t id = 0; id < n; ++id) {
    const std::vector<float> value = table.Row(id);
    const std::vector<float>& old_value = before[id * arrays];
    const auto found = sums.find(id);
    for (int64_t c = 0; c < table.dim; ++c) {
      if (found == sums.end()) {
        ASSERT_EQ(value[c], old_value[c]) << "id " << id;
        continue;
      }
      const Expected& g = found->second[c];
      double root = 1;
      if (is_adagrad) {
        const double old_slot = before[id * arrays + 1][c];
        const double slot = old_slot + g.value * g.value;
        root = std::sqrt(slot);
        ASSERT_TRUE(
            IsNear(table.Row(id, 0)[c],
                   {slot, old_slot + 2 * std::fabs(g.value) * g.terms}));
      }
      const double step = kUpdateRate * g.value / root;
      ASSERT_TRUE(IsNear(
          value[c], {old_value[c] - step,
                     std::fabs(old_value[c]) + kUpdateRate * g.terms / root}))
          << "id " << id << " column " << c;
    }
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_UPDATED_TABLE_H_
