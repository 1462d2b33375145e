#ifndef TFEMBED_KERNELS_FEATURE_INPUT_H_
#define TFEMBED_KERNELS_FEATURE_INPUT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/id_bags.h"

namespace tfembed {

enum class FeatureKind { kDense, kRagged, kSparse };

// What an op's attributes say of a feature.
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

// A feature's tensors of one batch; views. Movable; not to be copied, since
// `ids` may point into it.
struct FeatureTensors {
  absl::Span<const int64_t> ids;
  absl::Span<const int64_t> rows;   // None | row splits | (row, column) pairs.
  absl::Span<const float> weights;  // None: all 1.
  int64_t batch_size = 0;
  int64_t columns = kNoBound;  // Sparse: where a row ends.

  // Where the ids are strings, `ids` are string_ids, numbers that stand for
  // them, to be filled in by whoever knows what for (string_ids.h).
  bool are_strings = false;
  std::vector<absl::string_view> strings;
  std::vector<int64_t> string_ids;
};

// A feature of a batch as the core takes it. Ids are copied only where they
// must be: for sequences, and where sparse ids are pruned. Movable.
class FeatureInput {
 public:
  FeatureInput() = default;
  FeatureInput(FeatureInput&&) = default;
  FeatureInput& operator=(FeatureInput&&) = default;

  // Checks the tensors and lays out the bags. With `drops_negative` sparse
  // features that are validated drop ids below 0, which takes a look at all
  // ids. InvalidArgument names the feature and what does not fit. REQUIRES: the
  // tensors outlive this; batch_size is that of the output.
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

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_FEATURE_INPUT_H_
