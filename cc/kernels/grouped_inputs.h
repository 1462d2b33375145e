#ifndef TFEMBED_KERNELS_GROUPED_INPUTS_H_
#define TFEMBED_KERNELS_GROUPED_INPUTS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/executor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

enum class FeatureKind { kDense, kRagged, kSparse };

// A feature in an op's attributes.
struct FeatureSpec {
  std::string name;  // In errors: "feature 'user'" or "feature 3".
  int table = 0;
  FeatureKind kind = FeatureKind::kDense;
  Combiner combiner = Combiner::kSum;
  int64_t max_sequence_length = 0;
  bool validate = true;
};

// Columns of sparse ids that were given without any bound.
inline constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

// A feature's tensors of one batch, borrowed. Movable, but not copyable, since
// `ids` may point into it.
struct FeatureTensors {
  absl::Span<const int64_t> ids;
  absl::Span<const int64_t> rows;   // None | row splits | (row, column) pairs.
  absl::Span<const float> weights;  // None: all 1.
  int64_t batch_size = 0;
  int64_t columns = kNoBound;  // Sparse: where a row ends.

  // If the ids are strings, `ids` are string_ids, numbers that replace them;
  // StringIds or BatchStrings fill these in (grouped_tables.h).
  bool are_strings = false;
  std::vector<absl::string_view> strings;
  std::vector<int64_t> string_ids;
};

// A feature of a batch in the core's form. Ids are copied only for sequences,
// and if sparse ids are pruned. Movable.
class FeatureInput {
 public:
  FeatureInput() = default;
  FeatureInput(FeatureInput&&) = default;
  FeatureInput& operator=(FeatureInput&&) = default;

  // Checks the tensors and makes the bags. With `drops_negative`, sparse
  // features that are validated drop negative ids, for which all ids are read.
  // InvalidArgument names the feature and the mismatch. REQUIRES: the tensors
  // outlive this object; batch_size is that of the output.
  absl::Status Build(const FeatureSpec& spec, const FeatureTensors& tensors,
                     bool drops_negative);

  const IdBags& bags() const { return bags_; }

 private:
  absl::Status BuildDense(const FeatureSpec& spec,
                          const FeatureTensors& tensors);
  absl::Status BuildRagged(const FeatureSpec& spec,
                           const FeatureTensors& tensors);
  absl::Status BuildSparse(const FeatureSpec& spec,
                           const FeatureTensors& tensors, bool drops_negative);
  // As if all ids stayed: checks indices, lays out the bags and, where it looks
  // at the ids, says whether one is negative, in one pass.
  template <bool kLooksAtIds>
  absl::Status SplitSparse(const FeatureSpec& spec,
                           const FeatureTensors& tensors, bool* any_negative);
  // Appends id i to the bags that own their ids.
  void Keep(const FeatureTensors& tensors, int64_t i);
  // Points the bags at the ids that were kept.
  void UseKept(const FeatureTensors& tensors);

  IdBags bags_;
  std::vector<int64_t> ids_;
  std::vector<int64_t> splits_;
  std::vector<float> weights_;
};

// The tables and features in the attributes of all grouped ops.
struct GroupedSpec {
  std::vector<int64_t> dims;  // One per table.
  std::vector<FeatureSpec> features;

  using Reader =
      absl::Status (GroupedSpec::*)(tensorflow::OpKernelConstruction*);

  // InvalidArgument where lists differ in length or values are not allowed.
  absl::Status Read(tensorflow::OpKernelConstruction* construction);

  // The same for ops on N requests, each of which has rows of all T tables.
  absl::Status ReadRequests(tensorflow::OpKernelConstruction* construction);

  // [batch_size, dim] or [batch_size, max_sequence_length, dim].
  absl::Status ActivationsShape(int feature, int64_t batch_size,
                                tensorflow::TensorShape* shape) const;
};

// The unchecked tensors of one feature of a batch, borrowed.
struct FeatureParts {
  const tensorflow::Tensor* ids;
  const tensorflow::Tensor* rows;
  const tensorflow::Tensor* weights;
  int64_t batch_size;
  int64_t columns;  // Below 0: any number.
};

// The features that are a kernel's inputs.
absl::Status ReadParts(tensorflow::OpKernelContext* context,
                       const GroupedSpec& spec,
                       std::vector<FeatureParts>* parts);

// Returns the tensors of all features with ranks and batch sizes checked, from
// which the shapes of activations follow. The tensors live as long as `parts`.
absl::Status ReadFeatures(const GroupedSpec& spec,
                          absl::Span<const FeatureParts> parts,
                          std::vector<FeatureTensors>* tensors);

// Checks that gradients, a list input, have the shapes of the activations.
absl::Status ReadGradients(tensorflow::OpKernelContext* context,
                           const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           std::vector<const float*>* gradients);

// Lays out the bags of all features, on the executor's threads.
// drops_negative[t]: as FeatureInput::Build takes it, for table t.
absl::Status BuildFeatures(const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           const std::vector<bool>& drops_negative,
                           Executor* executor,
                           std::vector<FeatureInput>* features);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_GROUPED_INPUTS_H_
