#include "cc/kernels/grouped_inputs.h"

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

}  // namespace

absl::Status GroupedSpec::Read(OpKernelConstruction* construction) {
  int num_tables, num_features;
  TF_RETURN_IF_ERROR(construction->GetAttr("T", &num_tables));
  TF_RETURN_IF_ERROR(construction->GetAttr("F", &num_features));
  std::vector<tensorflow::DataType> id_dtypes;
  TF_RETURN_IF_ERROR(construction->GetAttr("Tids", &id_dtypes));
  if (id_dtypes.size() != num_features) {
    return absl::InvalidArgumentError(
        absl::StrCat("`Tids` must have one entry for each of the ",
                     num_features, " features; got ", id_dtypes.size(), "."));
  }
  TF_RETURN_IF_ERROR(construction->GetAttr("dims", &dims));
  if (dims.size() != num_tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dims` must have one entry for each of the ", num_tables,
                     " tables; got ", dims.size(), "."));
  }
  for (int64_t dim : dims) {
    if (dim < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`dims` must be positive; got ", dim, "."));
    }
  }
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
    TF_RETURN_IF_ERROR(CheckFeature(feature, num_tables));
    features.push_back(std::move(feature));
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

}  // namespace tfembed
