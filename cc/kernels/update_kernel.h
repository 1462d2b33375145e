#ifndef TFEMBED_KERNELS_UPDATE_KERNEL_H_
#define TFEMBED_KERNELS_UPDATE_KERNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/optimizers/update_rule.h"
#include "cc/core/rows/rows.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/table/static_table.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/grouped_tables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {

using UpdateRules = std::vector<std::unique_ptr<UpdateRule>>;  // One per table.

// The tables of an update, their variables and slot variables locked for
// writing while this lives.
class LockedSinks {
 public:
  // Opens the list inputs `tables` and `slots`, checking everything first: that
  // there is one slot variable for each slot of each static table's rule, that
  // shapes agree, that hash tables have the rule's slots and that nothing is
  // given twice. Memory that others have read is copied, so that they keep the
  // old values.
  // Adds the ids of features that are strings to their tables, and sets them.
  absl::Status Open(tensorflow::OpKernelContext* context,
                    const GroupedSpec& spec, const UpdateRules& rules,
                    Executor* executor, std::vector<FeatureTensors>* tensors);

  // Gives the tables free again, and forgets strings that got no row.
  void Close();

  RowSink* sink(int t) const { return sinks_[t].get(); }
  // Per table; -1 for those without a fixed vocabulary.
  const std::vector<int64_t>& num_rows() const { return num_rows_; }
  std::vector<bool> fixed_vocabulary() const;

 private:
  absl::Status CheckNumSlots(const UpdateRules& rules) const;
  absl::Status Lock();
  // Checks table t and its slots; `slot` counts those of all tables.
  absl::Status Check(int t, int64_t dim, const UpdateRule& rule, int* slot);
  absl::Status CheckSlotVariable(int t, const std::string& name, int64_t width,
                                 int slot);
  // Opens all tables, checked before.
  absl::Status Write(tensorflow::OpKernelContext* context,
                     const UpdateRules& rules);

  // In the order of acquisition: members are destroyed from the last.
  std::vector<GroupedTable> tables_;
  std::vector<GroupedTable> slots_;
  std::unique_ptr<VariableLocks> locks_;
  StringIds strings_;
  std::vector<StaticTable> views_;
  std::vector<std::unique_ptr<RowSink>> sinks_;
  std::vector<int64_t> num_rows_;
  std::vector<uint32_t> drops_;  // Of hash tables, when their slots were seen.
};

// Trains all tables with the gradients of a batch's activations, wherever the
// batch comes from: the op has `tables`, `slots` and `learning_rates` among its
// inputs and `nonfinite_rows` for output.
class UpdateKernel : public tensorflow::OpKernel {
 public:
  explicit UpdateKernel(tensorflow::OpKernelConstruction* construction,
                        GroupedSpec::Reader read = &GroupedSpec::Read);

 protected:
  const GroupedSpec& spec() const { return spec_; }

  // For ops with an input `gradients`.
  absl::Status Update(tensorflow::OpKernelContext* context,
                      absl::Span<const FeatureParts> parts) const;

  // Trains by gradients[f], those of feature f's activations.
  absl::Status Train(tensorflow::OpKernelContext* context,
                     std::vector<FeatureTensors>* tensors,
                     const std::vector<const float*>& gradients) const;

 private:
  absl::Status Construct(tensorflow::OpKernelConstruction* construction,
                         GroupedSpec::Reader read);
  absl::Status ReadTableNames(tensorflow::OpKernelConstruction* construction);
  absl::Status ReadNormLimits(tensorflow::OpKernelConstruction* construction);
  absl::Status Apply(absl::Span<const FeatureTensors> tensors,
                     const std::vector<const float*>& gradients,
                     LockedSinks* sinks, Executor* executor,
                     std::vector<TableUpdate>* updates) const;
  absl::Status ReadLearningRates(tensorflow::OpKernelContext* context,
                                 std::vector<TableUpdate>* updates) const;

  GroupedSpec spec_;
  std::vector<std::string> table_names_;  // For errors.
  UpdateRules rules_;
  NonFinite nonfinite_ = NonFinite::kSkip;
  std::vector<NormLimit> norm_limits_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_UPDATE_KERNEL_H_
