#include "cc/kernels/grouped_inputs.h"

#include <algorithm>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/key_batch.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// So many ids and numbers of rows are looked at before a second thread wakes
// up.
constexpr int64_t kSerialNumbers = 1 << 14;

// The attributes as they stand, one entry per feature each.
struct Attributes {
  std::vector<std::string> kinds;
  std::vector<int64_t> table_ids;
  std::vector<std::string> combiners;
  std::vector<int64_t> lengths;
  std::vector<bool> validate;
  std::vector<std::string> names;
};

absl::Status GetAttributes(OpKernelConstruction* construction, int count,
                           Attributes* attributes) {
  Attributes& a = *attributes;
  TF_RETURN_IF_ERROR(construction->GetAttr("kinds", &a.kinds));
  TF_RETURN_IF_ERROR(construction->GetAttr("table_ids", &a.table_ids));
  TF_RETURN_IF_ERROR(construction->GetAttr("combiners", &a.combiners));
  TF_RETURN_IF_ERROR(construction->GetAttr("max_sequence_lengths", &a.lengths));
  TF_RETURN_IF_ERROR(construction->GetAttr("validate", &a.validate));
  TF_RETURN_IF_ERROR(construction->GetAttr("feature_names", &a.names));
  a.names.resize(a.names.empty() ? count : a.names.size());
  for (size_t size : {a.kinds.size(), a.table_ids.size(), a.combiners.size(),
                      a.lengths.size(), a.validate.size(), a.names.size()}) {
    if (size != count) {
      return absl::InvalidArgumentError(
          absl::StrCat("Attributes must have one entry for each of the ", count,
                       " features; one has ", size, "."));
    }
  }
  return absl::OkStatus();
}

absl::Status GetDims(OpKernelConstruction* construction,
                     std::vector<int64_t>* dims) {
  int num_tables;
  TF_RETURN_IF_ERROR(construction->GetAttr("T", &num_tables));
  TF_RETURN_IF_ERROR(construction->GetAttr("dims", dims));
  if (dims->size() != num_tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dims` must have one entry for each of the ", num_tables,
                     " tables; got ", dims->size(), "."));
  }
  for (int64_t dim : *dims) {
    if (dim < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`dims` must be positive; got ", dim, "."));
    }
  }
  return absl::OkStatus();
}

FeatureKind ParseKind(const std::string& kind) {
  if (kind == "dense") return FeatureKind::kDense;
  return kind == "ragged" ? FeatureKind::kRagged : FeatureKind::kSparse;
}

Combiner ParseCombiner(const std::string& combiner) {
  if (combiner == "sum") return Combiner::kSum;
  return combiner == "mean" ? Combiner::kMean : Combiner::kSqrtn;
}

absl::Status CheckFeature(const FeatureSpec& spec, int num_tables) {
  if (spec.table < 0 || spec.table >= num_tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("In ", spec.name, ": the table must be in [0, ",
                     num_tables, "); got ", spec.table, "."));
  }
  if (spec.max_sequence_length < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "In ", spec.name, ": the sequence length must not be negative; got ",
        spec.max_sequence_length, "."));
  }
  if (spec.kind == FeatureKind::kDense && spec.max_sequence_length > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "In ", spec.name,
        ": a sequence feature takes sparse or ragged ids, not dense ones."));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const FeatureSpec& spec, const Tensor& ids,
                          const Tensor& rows, const Tensor& weights) {
  const bool sparse = spec.kind == FeatureKind::kSparse;
  const bool rows_fit = sparse ? rows.dims() == 2 && rows.dim_size(1) == 2 &&
                                     rows.dim_size(0) == ids.NumElements()
                               : rows.dims() == 1;
  if (ids.dims() != 1 || weights.dims() != 1 || !rows_fit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "In ", spec.name, ": ids and weights must be vectors and rows ",
        sparse ? "a pair for each id" : "a vector", "; got ids ",
        ids.shape().DebugString(), ", rows ", rows.shape().DebugString(),
        ", weights ", weights.shape().DebugString(), "."));
  }
  return absl::OkStatus();
}

// The batch size that a feature's tensors tell; -1 where they tell none.
int64_t BatchSize(const FeatureSpec& spec, const FeatureTensors& tensors) {
  switch (spec.kind) {
    case FeatureKind::kDense:
      return tensors.ids.size();
    case FeatureKind::kRagged:
      return static_cast<int64_t>(tensors.rows.size()) - 1;
    case FeatureKind::kSparse:
      break;
  }
  return -1;
}

absl::Status ReadFeature(const FeatureSpec& spec, const FeatureParts& parts,
                         FeatureTensors* tensors) {
  const Tensor &ids = *parts.ids, &rows = *parts.rows,
               &weights = *parts.weights;
  TF_RETURN_IF_ERROR(CheckTensors(spec, ids, rows, weights));
  tensors->batch_size = parts.batch_size;
  tensors->columns = parts.columns < 0 ? kNoBound : parts.columns;
  if (ids.dtype() == tensorflow::DT_STRING) {
    tensors->are_strings = true;
    tensors->strings = ViewsOf(ids);
    tensors->string_ids.resize(tensors->strings.size());
    tensors->ids = tensors->string_ids;
  } else {
    tensors->ids = {ids.flat<int64_t>().data(),
                    static_cast<size_t>(ids.NumElements())};
  }
  tensors->rows = {rows.flat<int64_t>().data(),
                   static_cast<size_t>(rows.NumElements())};
  tensors->weights = {weights.flat<float>().data(),
                      static_cast<size_t>(weights.NumElements())};
  const int64_t told = BatchSize(spec, *tensors);
  if (tensors->batch_size < 0 ||
      (spec.kind != FeatureKind::kSparse && told != tensors->batch_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "In ", spec.name, ": the batch size ", tensors->batch_size,
        told < 0 ? " cannot be."
                 : absl::StrCat(" is not that of the ids, ", told, ".")));
  }
  return absl::OkStatus();
}

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

absl::Status GroupedSpec::Read(OpKernelConstruction* construction) {
  int num_features;
  TF_RETURN_IF_ERROR(construction->GetAttr("F", &num_features));
  std::vector<tensorflow::DataType> id_dtypes;
  TF_RETURN_IF_ERROR(construction->GetAttr("Tids", &id_dtypes));
  if (id_dtypes.size() != num_features) {
    return absl::InvalidArgumentError(
        absl::StrCat("`Tids` must have one entry for each of the ",
                     num_features, " features; got ", id_dtypes.size(), "."));
  }
  TF_RETURN_IF_ERROR(GetDims(construction, &dims));
  Attributes attributes;
  TF_RETURN_IF_ERROR(GetAttributes(construction, num_features, &attributes));
  for (int f = 0; f < num_features; ++f) {
    FeatureSpec feature;
    feature.name = attributes.names[f].empty()
                       ? absl::StrCat("feature ", f)
                       : absl::StrCat("feature '", attributes.names[f], "'");
    feature.table = attributes.table_ids[f];
    feature.kind = ParseKind(attributes.kinds[f]);
    feature.combiner = ParseCombiner(attributes.combiners[f]);
    feature.max_sequence_length = attributes.lengths[f];
    feature.validate = attributes.validate[f];
    TF_RETURN_IF_ERROR(CheckFeature(feature, dims.size()));
    features.push_back(std::move(feature));
  }
  return absl::OkStatus();
}

absl::Status GroupedSpec::ReadRequests(OpKernelConstruction* construction) {
  int num_requests;
  TF_RETURN_IF_ERROR(construction->GetAttr("N", &num_requests));
  TF_RETURN_IF_ERROR(GetDims(construction, &dims));
  for (int r = 0; r < num_requests; ++r) {
    for (size_t t = 0; t < dims.size(); ++t) {
      FeatureSpec feature;
      feature.name = absl::StrCat("request ", r, ", table ", t);
      feature.table = static_cast<int>(t);
      features.push_back(std::move(feature));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupedSpec::ActivationsShape(int feature, int64_t batch_size,
                                           TensorShape* shape) const {
  const FeatureSpec& spec = features[feature];
  *shape = TensorShape();
  TF_RETURN_IF_ERROR(shape->AddDimWithStatus(batch_size));
  if (spec.max_sequence_length > 0) {
    TF_RETURN_IF_ERROR(shape->AddDimWithStatus(spec.max_sequence_length));
  }
  return shape->AddDimWithStatus(dims[spec.table]);
}

namespace {

// `name`, one number a feature.
absl::Status ReadPerFeature(OpKernelContext* context, const char* name,
                            int count, absl::Span<const int64_t>* numbers) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 1 || tensor->NumElements() != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must have one entry for each of the ", count,
        " features; got shape ", tensor->shape().DebugString(), "."));
  }
  *numbers = {tensor->flat<int64_t>().data(), static_cast<size_t>(count)};
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParts(OpKernelContext* context, const GroupedSpec& spec,
                       std::vector<FeatureParts>* parts) {
  OpInputList ids, rows, weights;
  TF_RETURN_IF_ERROR(context->input_list("ids", &ids));
  TF_RETURN_IF_ERROR(context->input_list("rows", &rows));
  TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
  const int count = spec.features.size();
  absl::Span<const int64_t> batch_sizes, columns;
  TF_RETURN_IF_ERROR(
      ReadPerFeature(context, "batch_sizes", count, &batch_sizes));
  TF_RETURN_IF_ERROR(ReadPerFeature(context, "columns", count, &columns));
  for (int f = 0; f < count; ++f) {
    parts->push_back(
        {&ids[f], &rows[f], &weights[f], batch_sizes[f], columns[f]});
  }
  return absl::OkStatus();
}

absl::Status ReadFeatures(const GroupedSpec& spec,
                          absl::Span<const FeatureParts> parts,
                          std::vector<FeatureTensors>* tensors) {
  tensors->resize(parts.size());
  for (size_t f = 0; f < parts.size(); ++f) {
    TF_RETURN_IF_ERROR(ReadFeature(spec.features[f], parts[f], &(*tensors)[f]));
  }
  return absl::OkStatus();
}

absl::Status ReadGradients(OpKernelContext* context, const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           std::vector<const float*>* gradients) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list("gradients", &list));
  for (int f = 0; f < list.size(); ++f) {
    TensorShape expected;
    TF_RETURN_IF_ERROR(
        spec.ActivationsShape(f, tensors[f].batch_size, &expected));
    if (list[f].shape() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("In ", spec.features[f].name,
                       ": the gradient must have the activations' shape ",
                       expected.DebugString(), "; got ",
                       list[f].shape().DebugString(), "."));
    }
    gradients->push_back(list[f].flat<float>().data());
  }
  return absl::OkStatus();
}

absl::Status BuildFeatures(const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           const std::vector<bool>& drops_negative,
                           Executor* executor,
                           std::vector<FeatureInput>* features) {
  features->resize(tensors.size());
  std::vector<absl::Status> statuses(tensors.size());
  int64_t numbers = 0;
  for (const FeatureTensors& one : tensors) {
    numbers += one.ids.size() + one.rows.size();
  }
  if (numbers < kSerialNumbers) executor = nullptr;
  ParallelFor(executor, tensors.size(), [&](int64_t f) {
    const FeatureSpec& feature = spec.features[f];
    try {
      statuses[f] = (*features)[f].Build(feature, tensors[f],
                                         drops_negative[feature.table]);
    } catch (const std::exception&) {  // bad_alloc or length_error.
      statuses[f] = absl::ResourceExhaustedError(
          absl::StrCat("In ", feature.name, ": there is no memory for ",
                       tensors[f].batch_size, " samples."));
    }
  });
  for (const absl::Status& status : statuses) TF_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

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
  if (is_bad) return CheckIndices(spec, tensors);  // The error in words.
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
