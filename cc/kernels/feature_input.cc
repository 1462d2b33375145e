#include "cc/kernels/feature_input.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

template <typename... Parts>
absl::Status Refuse(const FeatureSpec& spec, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("In ", spec.name, ": ", parts...));
}

absl::Status CheckSplits(const FeatureSpec& spec,
                         const FeatureTensors& tensors) {
  const auto splits = tensors.rows;
  if (splits.empty() || splits[0] != 0) {
    return Refuse(spec, "row splits must start at 0; got ",
                  splits.empty() ? "none" : absl::StrCat(splits[0]), ".");
  }
  for (int64_t b = 0; b + 1 < splits.size(); ++b) {
    if (splits[b + 1] < splits[b]) {
      return Refuse(spec, "row splits must not decrease; got ", splits[b],
                    " and then ", splits[b + 1], ".");
    }
  }
  if (splits.back() != tensors.ids.size()) {
    return Refuse(spec, "the last row split must be the number of ids, ",
                  tensors.ids.size(), "; got ", splits.back(), ".");
  }
  return absl::OkStatus();
}

std::string Columns(const FeatureTensors& tensors) {
  if (tensors.columns == kNoBound) return "";
  return absl::StrCat(" with rows of up to ", tensors.columns, " ids");
}

// Rows in order and in the batch. Places of a sequence hold one id each, so
// there the columns must be in order too.
absl::Status CheckIndices(const FeatureSpec& spec,
                          const FeatureTensors& tensors) {
  int64_t last_row = 0, last_column = -1;
  for (int64_t i = 0; i < tensors.ids.size(); ++i) {
    const int64_t row = tensors.rows[2 * i], column = tensors.rows[2 * i + 1];
    if (row < 0 || row >= tensors.batch_size || column < 0 ||
        column >= tensors.columns) {
      return Refuse(spec, "sparse index [", row, ",", column,
                    "] is outside of the batch of ", tensors.batch_size,
                    Columns(tensors), ".");
    }
    if (row < last_row || (spec.max_sequence_length > 0 && row == last_row &&
                           column <= last_column)) {
      return Refuse(spec, "sparse indices must be in order; got [", row, ",",
                    column, "] after [", last_row, ",", last_column,
                    "]. Use tf.sparse.reorder.");
    }
    last_row = row;
    last_column = column;
  }
  return absl::OkStatus();
}

// Whether a validated sparse id is dropped, as safe_embedding_lookup_sparse
// does.
bool Prunes(const FeatureSpec& spec, const FeatureTensors& tensors, int64_t i,
            bool drops_negative) {
  if (drops_negative && tensors.ids[i] < 0) return true;
  return spec.combiner != Combiner::kSum && !tensors.weights.empty() &&
         !(tensors.weights[i] > 0);
}

// Whether a weight alone is enough to drop an id.
bool PrunesByWeight(const FeatureSpec& spec, const FeatureTensors& tensors) {
  if (!spec.validate || spec.combiner == Combiner::kSum) return false;
  return std::any_of(tensors.weights.begin(), tensors.weights.end(),
                     [](float weight) { return !(weight > 0); });
}

}  // namespace

absl::Status FeatureInput::Build(const FeatureSpec& spec,
                                 const FeatureTensors& tensors,
                                 bool drops_negative) {
  if (!tensors.weights.empty() &&
      tensors.weights.size() != tensors.ids.size()) {
    return Refuse(spec, "there must be one weight for each of the ",
                  tensors.ids.size(), " ids, or none; got ",
                  tensors.weights.size(), ".");
  }
  const int64_t length = spec.max_sequence_length;
  bags_.num_bags = tensors.batch_size * std::max<int64_t>(length, 1);
  bags_.combiner = length > 0 ? Combiner::kSum : spec.combiner;
  bags_.ids = tensors.ids.data();
  bags_.weights = tensors.weights.empty() ? nullptr : tensors.weights.data();
  switch (spec.kind) {
    case FeatureKind::kDense:
      return BuildDense(spec, tensors);
    case FeatureKind::kRagged:
      return BuildRagged(spec, tensors);
    case FeatureKind::kSparse:
      return BuildSparse(spec, tensors, drops_negative && spec.validate);
  }
  return absl::InternalError("Unknown kind of feature.");
}

absl::Status FeatureInput::BuildDense(const FeatureSpec& spec,
                                      const FeatureTensors& tensors) {
  if (!tensors.weights.empty()) {
    return Refuse(spec, "dense ids take no weights.");
  }
  if (!tensors.rows.empty()) {
    return Refuse(spec, "dense ids take no rows; got ", tensors.rows.size(),
                  ".");
  }
  bags_.combiner = Combiner::kSum;
  return absl::OkStatus();
}

absl::Status FeatureInput::BuildRagged(const FeatureSpec& spec,
                                       const FeatureTensors& tensors) {
  if (absl::Status status = CheckSplits(spec, tensors); !status.ok()) {
    return status;
  }
  const int64_t length = spec.max_sequence_length;
  bags_.splits = tensors.rows.data();
  if (length == 0) return absl::OkStatus();
  splits_.reserve(bags_.num_bags + 1);
  splits_.push_back(0);
  for (int64_t b = 0; b < tensors.batch_size; ++b) {
    const int64_t begin = tensors.rows[b], end = tensors.rows[b + 1];
    for (int64_t place = 0; place < length; ++place) {
      if (place < end - begin) Keep(tensors, begin + place);
      splits_.push_back(ids_.size());
    }
  }
  UseKept(tensors);
  return absl::OkStatus();
}

absl::Status FeatureInput::BuildSparse(const FeatureSpec& spec,
                                       const FeatureTensors& tensors,
                                       bool drops_negative) {
  const int64_t length = spec.max_sequence_length;
  if (length == 0 && !PrunesByWeight(spec, tensors)) {
    bool any_negative = false;
    absl::Status status =
        drops_negative ? SplitSparse<true>(spec, tensors, &any_negative)
                       : SplitSparse<false>(spec, tensors, &any_negative);
    if (!status.ok() || !any_negative) return status;
    splits_.clear();
  } else if (absl::Status status = CheckIndices(spec, tensors); !status.ok()) {
    return status;
  }
  const int64_t n = tensors.ids.size();
  splits_.reserve(bags_.num_bags + 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = tensors.rows[2 * i], column = tensors.rows[2 * i + 1];
    if (length > 0 && column >= length) continue;
    if (spec.validate && Prunes(spec, tensors, i, drops_negative)) continue;
    // Bags up to this id's start here at the latest.
    const int64_t bag = length > 0 ? row * length + column : row;
    if (splits_.size() <= bag) splits_.resize(bag + 1, ids_.size());
    Keep(tensors, i);
  }
  splits_.resize(bags_.num_bags + 1, ids_.size());
  UseKept(tensors);
  return absl::OkStatus();
}

// Without branches that depend on an index: bags end where no processor expects
// it. Each id writes its bag's end, so that of the bag's last one stays; bags
// without ids end where the bag before them does. An id of a row that is not in
// the batch writes to splits[0], which is 0 where no index is bad.
template <bool kLooksAtIds>
absl::Status FeatureInput::SplitSparse(const FeatureSpec& spec,
                                       const FeatureTensors& tensors,
                                       bool* any_negative) {
  const int64_t n = tensors.ids.size();
  const int64_t* const ids = tensors.ids.data();
  const int64_t* const indices = tensors.rows.data();
  const auto num_rows = static_cast<uint64_t>(tensors.batch_size);
  const auto num_columns = static_cast<uint64_t>(tensors.columns);
  splits_.assign(bags_.num_bags + 1, 0);
  int64_t* const splits = splits_.data();
  int64_t last_row = 0, signs = 0;
  bool is_bad = false;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = indices[2 * i];
    is_bad |= row < last_row;
    is_bad |= static_cast<uint64_t>(indices[2 * i + 1]) >= num_columns;
    if (kLooksAtIds) signs |= ids[i];
    last_row = row;
    splits[static_cast<uint64_t>(row) < num_rows ? row + 1 : 0] = i + 1;
  }
  is_bad |= n > 0 && last_row >= tensors.batch_size;
  if (is_bad) return CheckIndices(spec, tensors);  // Which says what is wrong.
  for (int64_t b = 1; b <= bags_.num_bags; ++b) {
    splits[b] = std::max(splits[b], splits[b - 1]);
  }
  *any_negative = signs < 0;
  bags_.splits = splits;
  return absl::OkStatus();
}

void FeatureInput::Keep(const FeatureTensors& tensors, int64_t i) {
  ids_.push_back(tensors.ids[i]);
  if (!tensors.weights.empty()) weights_.push_back(tensors.weights[i]);
}

void FeatureInput::UseKept(const FeatureTensors& tensors) {
  bags_.ids = ids_.data();
  bags_.splits = splits_.data();
  bags_.weights = tensors.weights.empty() ? nullptr : weights_.data();
}

}  // namespace tfembed
