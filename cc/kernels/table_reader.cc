#include "cc/kernels/table_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/table_dtypes.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSlice;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(what);
}

absl::Status Allocate(DataType dtype, const TensorShape& shape, Tensor* to) {
  *to = Tensor(dtype, shape);
  if (to->IsInitialized()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "There is no memory for ", shape.DebugString(), " of a checkpoint"));
}

// Copies the rows of a [n, dim] tensor to word `first` of wider rows.
void CopyColumns(const Tensor& from, int64_t first, Tensor* to) {
  const int64_t n = from.dim_size(0), width = to->dim_size(1);
  if (n == 0) return;
  const int64_t bytes = static_cast<int64_t>(from.TotalBytes()) / n;
  const char* in = static_cast<const char*>(from.data());
  float* out = to->flat<float>().data() + first;
  for (int64_t i = 0; i < n; ++i) {
    CopyBytes(in + i * bytes, out + i * width, bytes);
  }
}

// To the last word of each row, as EmbeddingTable::Import takes them.
void CopyNotes(const Tensor& notes, Tensor* to) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const int64_t n = to->dim_size(0), width = to->dim_size(1);
  float* out = to->flat<float>().data() + width - 1;
  for (int64_t i = 0; i < n; ++i) {
    const auto word = static_cast<uint32_t>(
        std::clamp<int64_t>(notes.flat<int64_t>()(i), 0, kMost));
    std::memcpy(out + i * width, &word, sizeof(word));
  }
}

void FillColumns(float value, int64_t first, int64_t dim, Tensor* to) {
  const int64_t n = to->dim_size(0), width = to->dim_size(1);
  float* out = to->flat<float>().data() + first;
  for (int64_t i = 0; i < n; ++i) std::fill_n(out + i * width, dim, value);
}

}  // namespace

absl::Status TableReader::Explain(const absl::Status& status,
                                  absl::string_view tensor) {
  if (status.ok()) return status;
  absl::StatusCode code = status.code();
  absl::string_view advice;
  if (!IsDamage(status)) {
    advice = " It cannot be read now; try again.";
  } else if (absl::IsNotFound(status) &&
             files_->Contains(std::string(tensor))) {
    code = absl::StatusCode::kUnavailable;
    advice = " The index cannot be read now; try again.";
  } else if (code != absl::StatusCode::kNotFound &&
             code != absl::StatusCode::kInvalidArgument) {
    code = absl::StatusCode::kDataLoss;
    advice = " Its files are damaged or cut off; restore another checkpoint.";
  }
  return absl::Status(
      code, absl::StrCat("Table '", table_name_, "' cannot be restored: '",
                         tensor, "' of checkpoint '", files_->prefix(),
                         "': ", status.message(), ".", advice));
}

absl::Status TableReader::CheckTensor(const std::string& tensor, DataType dtype,
                                      const TensorShape& shape) {
  DataType found_dtype;
  TensorShape found_shape;
  const absl::Status status =
      files_->reader()->LookupDtypeAndShape(tensor, &found_dtype, &found_shape);
  if (!status.ok()) return Explain(status, tensor);
  if (found_dtype == dtype && found_shape == shape) return absl::OkStatus();
  return Explain(
      absl::InvalidArgumentError(absl::StrCat(
          "it is ", tensorflow::DataTypeString(found_dtype), " ",
          found_shape.DebugString(), "; the table takes ",
          tensorflow::DataTypeString(dtype), " ", shape.DebugString())),
      tensor);
}

tensorflow::DataType TableReader::key_dtype() const {
  return StoredKeyDtype(layout_.keys == KeyKind::kString);
}

tensorflow::DataType TableReader::value_dtype() const {
  return ValueDtype(layout_.values);
}

absl::Status TableReader::CheckFits(const EmbeddingTable& table) {
  if (layout_.dim != table.dim()) {
    return Explain(
        absl::InvalidArgumentError(absl::StrCat(
            "its rows have width ", layout_.dim, "; this table's `dim` is ",
            table.dim(), ", and must be the same")),
        ValuesTensor(tensor_name_));
  }
  if (layout_.keys == table.key_kind() && layout_.values == table.type()) {
    return absl::OkStatus();
  }
  return Explain(
      absl::InvalidArgumentError(absl::StrCat(
          "it maps ", tensorflow::DataTypeString(KeyDtype(layout_.keys)),
          " keys to ", tensorflow::DataTypeString(value_dtype()),
          " values; this table maps ",
          tensorflow::DataTypeString(KeyDtype(table.key_kind())), " to ",
          tensorflow::DataTypeString(ValueDtype(table.type())),
          ", and must be of the same dtypes")),
      LayoutTensor(tensor_name_));
}

absl::Status TableReader::Open(const EmbeddingTable& table) {
  const std::string name = LayoutTensor(tensor_name_);
  if (!files_->Contains(name)) {
    return Explain(absl::NotFoundError(
                       "there is no such tensor, so no hash table was saved "
                       "under this name"),
                   name);
  }
  TF_RETURN_IF_ERROR(CheckTensor(name, tensorflow::DT_STRING, {}));
  Tensor text(tensorflow::DT_STRING, TensorShape({}));
  const absl::Status status = files_->reader()->Lookup(name, &text);
  if (!status.ok()) return Explain(status, name);
  absl::StatusOr<TableLayout> layout =
      TableLayout::Parse(text.scalar<tensorflow::tstring>()());
  if (!layout.ok()) return Explain(layout.status(), name);
  layout_ = *std::move(layout);
  TF_RETURN_IF_ERROR(CheckFits(table));
  return FindChunks();
}

absl::Status TableReader::FindChunks() {
  const std::string keys = KeysTensor(tensor_name_);
  TensorShape shape;
  absl::Status status = files_->reader()->LookupTensorShape(keys, &shape);
  if (!status.ok()) return Explain(status, keys);
  num_rows_ = shape.num_elements();
  TF_RETURN_IF_ERROR(CheckTensor(keys, key_dtype(), TensorShape({num_rows_})));
  TensorShape rows;  // What a damaged file says may be more than there is.
  status = TensorShape::BuildTensorShape({num_rows_, layout_.dim}, &rows);
  if (!status.ok()) return Explain(Damaged(status.message()), keys);
  TF_RETURN_IF_ERROR(
      CheckTensor(ValuesTensor(tensor_name_), value_dtype(), rows));
  for (size_t s = 0; s < layout_.slots.names.size(); ++s) {
    TF_RETURN_IF_ERROR(CheckTensor(
        SlotTensor(tensor_name_, layout_.slots.names[s]), tensorflow::DT_FLOAT,
        TensorShape({num_rows_, SavedSlotWidth(s)})));
  }
  if (!layout_.notes.empty()) {
    TF_RETURN_IF_ERROR(CheckTensor(NotesTensor(tensor_name_),
                                   tensorflow::DT_INT64,
                                   TensorShape({num_rows_})));
  }
  TF_RETURN_IF_ERROR(FindSlices(keys, num_rows_, &chunks_));
  return FindWaiting();
}

absl::Status TableReader::FindSlices(const std::string& vector, int64_t n,
                                     std::vector<int64_t>* chunks) {
  std::vector<TensorSlice> slices;
  const absl::Status status =
      files_->reader()->LookupTensorSlices(vector, &slices);
  if (!status.ok()) return Explain(status, vector);
  std::vector<int64_t> ends;
  if (slices.empty()) ends.push_back(n);
  for (const TensorSlice& slice : slices) ends.push_back(slice.end(0));
  std::sort(ends.begin(), ends.end());
  chunks->assign(1, 0);
  chunks->insert(chunks->end(), ends.begin(), ends.end());
  if (chunks->back() == n && chunks->at(1) >= 0) return absl::OkStatus();
  return Explain(Damaged(absl::StrCat("its slices end at row ", chunks->back(),
                                      " of ", n)),
                 vector);
}

int64_t TableReader::SavedSlotWidth(int64_t slot) const {
  return SlotWidth(layout_.slots.row_wise, slot, layout_.dim);
}

absl::Status TableReader::ReadSlice(const std::string& tensor,
                                    const std::vector<int64_t>& chunks,
                                    int64_t c, DataType dtype, int64_t width,
                                    Tensor* slice) {
  const bool is_sliced = chunks.size() > 2;
  const int64_t begin = chunks[c], n = chunks[c + 1] - begin;
  TensorShape shape({n});
  TensorSlice spec({{begin, n}});
  if (width != kVector) {
    shape.AddDim(width);
    spec = TensorSlice({{begin, n}, {0, width}});
  }
  if (FindKept(tensor, c, slice)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(Allocate(dtype, shape, slice));
  if (width == 0) return absl::OkStatus();
  const CheckpointFiles::Reader reader = files_->reader();
  absl::Status status = reader->status();
  if (status.ok()) {
    status = is_sliced ? reader->LookupSlice(tensor, spec, slice)
                       : reader->Lookup(tensor, slice);
  }
  if (status.ok()) {
    Keep(tensor, c, *slice);
    return status;
  }
  return ExplainPart(status, absl::StrCat("rows ", begin, " to ", begin + n),
                     tensor);
}

absl::Status TableReader::ExplainPart(const absl::Status& status,
                                      absl::string_view part,
                                      absl::string_view tensor) {
  const std::string text = absl::StrCat(part, ": ", status.message());
  return Explain(
      IsDamage(status) ? Damaged(text) : absl::Status(status.code(), text),
      tensor);
}

bool TableReader::FindKept(const std::string& tensor, int64_t part,
                           Tensor* content) const {
  std::lock_guard<std::mutex> lock(kept_mutex_);
  const auto found = kept_.find({tensor, part});
  if (found == kept_.end()) return false;
  *content = found->second;
  return true;
}

void TableReader::Keep(const std::string& tensor, int64_t part,
                       const Tensor& content) {
  auto bytes = static_cast<int64_t>(content.TotalBytes());
  if (content.dtype() == tensorflow::DT_STRING) {
    const auto texts = content.flat<tensorflow::tstring>();
    for (int64_t i = 0; i < texts.size(); ++i) bytes += texts(i).size();
  }
  if (!files_->MayKeep(bytes)) return;
  std::lock_guard<std::mutex> lock(kept_mutex_);
  kept_[{tensor, part}] = content;
}

absl::Status TableReader::VerifyChunk(int64_t c, Tensor* keys) {
  Tensor slice;
  TF_RETURN_IF_ERROR(ReadSlice(KeysTensor(tensor_name_), chunks_, c,
                               key_dtype(), kVector, keys));
  TF_RETURN_IF_ERROR(ReadSlice(ValuesTensor(tensor_name_), chunks_, c,
                               value_dtype(), layout_.dim, &slice));
  for (size_t s = 0; s < layout_.slots.names.size(); ++s) {
    TF_RETURN_IF_ERROR(
        ReadSlice(SlotTensor(tensor_name_, layout_.slots.names[s]), chunks_, c,
                  tensorflow::DT_FLOAT, SavedSlotWidth(s), &slice));
  }
  if (layout_.notes.empty()) return absl::OkStatus();
  return ReadSlice(NotesTensor(tensor_name_), chunks_, c, tensorflow::DT_INT64,
                   kVector, &slice);
}

absl::Status TableReader::ReadChunk(int64_t c, const EmbeddingTable& table,
                                    bool load_slots, Tensor* keys,
                                    Tensor* rows) {
  const RowLayout layout = table.layout();
  const SlotLayout slots = table.slots();
  if (layout.num_slots != static_cast<int64_t>(slots.names.size())) {
    return absl::AbortedError(absl::StrCat(
        "Table '", table_name_, "' was given an optimizer meanwhile."));
  }
  const int64_t n = chunks_[c + 1] - chunks_[c];
  TF_RETURN_IF_ERROR(ReadSlice(KeysTensor(tensor_name_), chunks_, c,
                               key_dtype(), kVector, keys));
  Tensor slice;
  TF_RETURN_IF_ERROR(ReadSlice(ValuesTensor(tensor_name_), chunks_, c,
                               value_dtype(), layout_.dim, &slice));
  if (value_dtype() == tensorflow::DT_FLOAT && layout.width() == layout_.dim) {
    *rows = std::move(slice);
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(
      Allocate(tensorflow::DT_FLOAT, TensorShape({n, layout.width()}), rows));
  CopyColumns(slice, 0, rows);
  FillColumns(0, layout.meta_begin(), layout.meta_words, rows);
  if (!layout_.notes.empty() && table.notes() == layout_.notes) {
    TF_RETURN_IF_ERROR(ReadSlice(NotesTensor(tensor_name_), chunks_, c,
                                 tensorflow::DT_INT64, kVector, &slice));
    CopyNotes(slice, rows);
  }
  const auto& saved = layout_.slots.names;
  for (int64_t s = 0; s < layout.num_slots; ++s) {
    const std::string& slot = slots.names[s];
    const auto found = std::find(saved.begin(), saved.end(), slot);
    if (!load_slots || found == saved.end()) {
      FillColumns(slots.initial_values[s], layout.slot_begin(s),
                  layout.slot_width(s), rows);
      continue;
    }
    const int64_t width = SavedSlotWidth(found - saved.begin());
    if (width != layout.slot_width(s)) {
      return Explain(
          absl::InvalidArgumentError(absl::StrCat(
              "it has ", width, " floats a row; this table's slot has ",
              layout.slot_width(s), ", that of another optimizer")),
          SlotTensor(tensor_name_, slot));
    }
    TF_RETURN_IF_ERROR(ReadSlice(SlotTensor(tensor_name_, slot), chunks_, c,
                                 tensorflow::DT_FLOAT, width, &slice));
    CopyColumns(slice, layout.slot_begin(s), rows);
  }
  return absl::OkStatus();
}

}  // namespace tfembed
