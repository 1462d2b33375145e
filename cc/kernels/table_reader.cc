// Reads the keys that wait for admission.
#include "cc/kernels/table_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/checkpoint_repeats.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/mapped_tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(what);
}

absl::Status Allocate(DataType dtype, const TensorShape& shape, Tensor* to) {
  absl::StatusOr<Tensor> made = MapTensor(dtype, shape);
  if (!made.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "There is no memory for ", shape.DebugString(), " of a checkpoint"));
  }
  *to = *std::move(made);
  return absl::OkStatus();
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

uint32_t NoteOf(const Tensor& notes, int64_t i) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(
      std::clamp<int64_t>(notes.flat<int64_t>()(i), 0, kMost));
}

// To the last word of each row, as EmbeddingTable::Import takes them.
void CopyNotes(const Tensor& notes, Tensor* to) {
  const int64_t n = to->dim_size(0), width = to->dim_size(1);
  float* out = to->flat<float>().data() + width - 1;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = NoteOf(notes, i);
    std::memcpy(out + i * width, &word, sizeof(word));
  }
}

// True of other dtypes.
bool AreBools(const Tensor& values) {
  if (values.dtype() != tensorflow::DT_BOOL) return true;
  const absl::string_view bytes = values.tensor_data();
  return std::all_of(bytes.begin(), bytes.end(),
                     [](char byte) { return byte == 0 || byte == 1; });
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
  // Else a file that must have the tensor is missing.
  const bool is_absent = absl::IsNotFound(status) && !files_->Contains(tensor);
  if (!IsDamage(status)) {
    advice = " It cannot be read now; try again.";
  } else if (code != absl::StatusCode::kInvalidArgument && !is_absent) {
    code = absl::StatusCode::kDataLoss;
    advice = " Its files are damaged or cut off; restore another checkpoint.";
  }
  return absl::Status(
      code, absl::StrCat("Table '", table_name_, "' cannot be restored: '",
                         tensor, "' of checkpoint '", files_->prefix(),
                         "': ", status.message(), ".", advice));
}

absl::Status TableReader::FindTensor(const std::string& tensor, DataType dtype,
                                     const TensorShape& shape,
                                     SavedTensor* saved) {
  absl::StatusOr<SavedTensor> found = files_->Find(tensor);
  if (!found.ok()) return Explain(found.status(), tensor);
  *saved = *std::move(found);
  if (saved->dtype == dtype && saved->shape == shape) return absl::OkStatus();
  return Explain(
      absl::InvalidArgumentError(absl::StrCat(
          "it is ", tensorflow::DataTypeString(saved->dtype), " ",
          saved->shape.DebugString(), "; the table takes ",
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
  TF_RETURN_IF_ERROR(ReadLayout());
  TF_RETURN_IF_ERROR(CheckFits(table));
  TF_RETURN_IF_ERROR(FindChunks());
  return FindWaiting();
}

absl::Status TableReader::ReadLayout() {
  const std::string name = LayoutTensor(tensor_name_);
  if (!files_->Contains(name)) {
    return Explain(absl::NotFoundError(
                       "there is no such tensor, so no hash table was saved "
                       "under this name"),
                   name);
  }
  SavedTensor saved;
  TF_RETURN_IF_ERROR(FindTensor(name, tensorflow::DT_STRING, {}, &saved));
  if (saved.bytes > TableLayout::kMostBytes) {
    return Explain(absl::InvalidArgumentError(absl::StrCat(
                       "it has ", saved.bytes, " bytes; a layout has at most ",
                       TableLayout::kMostBytes)),
                   name);
  }
  Tensor text(tensorflow::DT_STRING, TensorShape({}));
  TF_RETURN_IF_ERROR(Explain(files_->ReadPart(saved, 0, &text), name));
  absl::StatusOr<TableLayout> layout =
      TableLayout::Parse(text.scalar<tensorflow::tstring>()());
  if (!layout.ok()) return Explain(layout.status(), name);
  layout_ = *std::move(layout);
  return absl::OkStatus();
}

absl::Status TableReader::FindChunks() {
  const std::string keys = KeysTensor(tensor_name_);
  TF_RETURN_IF_ERROR(FindKeys(keys, &keys_));
  const int64_t n = keys_.shape.dim_size(0);
  TensorShape rows;  // A damaged file may claim more than there is.
  const absl::Status status =
      TensorShape::BuildTensorShape({n, layout_.dim}, &rows);
  if (!status.ok()) return Explain(Damaged(status.message()), keys);
  TF_RETURN_IF_ERROR(FindRows(ValuesTensor(tensor_name_), value_dtype(), rows,
                              keys_, &values_));
  slots_.resize(layout_.slots.names.size());
  for (size_t s = 0; s < slots_.size(); ++s) {
    TF_RETURN_IF_ERROR(FindRows(
        SlotTensor(tensor_name_, layout_.slots.names[s]), tensorflow::DT_FLOAT,
        TensorShape({n, SavedSlotWidth(s)}), keys_, &slots_[s]));
  }
  if (layout_.notes.empty()) return absl::OkStatus();
  return FindRows(NotesTensor(tensor_name_), tensorflow::DT_INT64, keys_.shape,
                  keys_, &notes_);
}

absl::Status TableReader::FindKeys(const std::string& tensor,
                                   SavedTensor* keys) {
  absl::StatusOr<SavedTensor> found = files_->Find(tensor);
  if (!found.ok()) return Explain(found.status(), tensor);
  *keys = *std::move(found);
  if (keys->dtype == key_dtype() && keys->shape.dims() == 1) {
    return absl::OkStatus();
  }
  return Explain(
      absl::InvalidArgumentError(absl::StrCat(
          "it is ", tensorflow::DataTypeString(keys->dtype), " ",
          keys->shape.DebugString(), "; the table takes a vector of ",
          tensorflow::DataTypeString(key_dtype()))),
      tensor);
}

absl::Status TableReader::FindRows(const std::string& tensor, DataType dtype,
                                   const TensorShape& shape,
                                   const SavedTensor& keys,
                                   SavedTensor* saved) {
  TF_RETURN_IF_ERROR(FindTensor(tensor, dtype, shape, saved));
  if (shape.num_elements() == 0 || saved->rows == keys.rows) {
    return absl::OkStatus();
  }
  return Explain(Damaged("its slices are not those of the keys"), tensor);
}

int64_t TableReader::SavedSlotWidth(int64_t slot) const {
  return SlotWidth(layout_.slots.row_wise, slot, layout_.dim);
}

absl::Status TableReader::ReadSlice(const std::string& tensor,
                                    const SavedTensor& saved, int64_t c,
                                    Tensor* slice) {
  const bool is_empty = saved.parts.empty() || saved.shape.num_elements() == 0;
  TensorShape shape = saved.shape;  // For chunk 0 without elements.
  if (!is_empty) shape.set_dim(0, saved.parts[c].lengths[0]);
  if (FindKept(tensor, c, slice)) return absl::OkStatus();
  absl::Status status;
  if (saved.dtype == tensorflow::DT_STRING) {
    status = files_->CheckMemoryOf(shape.num_elements());
  }
  if (!status.ok()) return Explain(status, tensor);
  TF_RETURN_IF_ERROR(Allocate(saved.dtype, shape, slice));
  if (is_empty) return absl::OkStatus();
  status = files_->ReadPart(saved, c, slice);
  if (status.ok()) {
    Keep(tensor, c, *slice);
    return status;
  }
  const int64_t begin = saved.parts[c].starts[0];
  return ExplainPart(
      status, absl::StrCat("rows ", begin, " to ", begin + shape.dim_size(0)),
      tensor);
}

absl::Status TableReader::ReadKeys(const std::string& tensor,
                                   const SavedTensor& saved, int64_t c,
                                   Tensor* keys) {
  TF_RETURN_IF_ERROR(ReadSlice(tensor, saved, c, keys));
  return CheckKeys(tensor, *keys);
}

absl::Status TableReader::CheckKeys(const std::string& tensor,
                                    const Tensor& keys) {
  using Narrow = std::numeric_limits<int32_t>;
  if (layout_.keys != KeyKind::kInt32) return absl::OkStatus();
  const auto all = keys.flat<int64_t>();
  for (int64_t i = 0; i < all.size(); ++i) {
    if (all(i) >= Narrow::min() && all(i) <= Narrow::max()) continue;
    return Explain(
        absl::InvalidArgumentError(absl::StrCat(
            "it has key ", all(i), "; the table's keys are int32, from ",
            Narrow::min(), " to ", Narrow::max())),
        tensor);
  }
  return absl::OkStatus();
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
  TF_RETURN_IF_ERROR(ReadKeys(KeysTensor(tensor_name_), keys_, c, keys));
  TF_RETURN_IF_ERROR(ReadSlice(ValuesTensor(tensor_name_), values_, c, &slice));
  if (!AreBools(slice)) {
    return Explain(Damaged("a bool is neither 0 nor 1"),
                   ValuesTensor(tensor_name_));
  }
  for (size_t s = 0; s < slots_.size(); ++s) {
    TF_RETURN_IF_ERROR(
        ReadSlice(SlotTensor(tensor_name_, layout_.slots.names[s]), slots_[s],
                  c, &slice));
  }
  if (layout_.notes.empty()) return absl::OkStatus();
  return ReadSlice(NotesTensor(tensor_name_), notes_, c, &slice);
}

absl::Status TableReader::ReadKeys(int64_t c, Tensor* keys) {
  return ReadKeys(KeysTensor(tensor_name_), keys_, c, keys);
}

absl::Status TableReader::RefuseKey(absl::string_view key, bool waits) {
  return Explain(HasTwice(key), waits ? WaitingKeysTensor(tensor_name_)
                                      : KeysTensor(tensor_name_));
}

absl::Status TableReader::CheckBound(const EmbeddingTable& table, int64_t rows,
                                     int64_t shard) {
  // A policy without notes judges by the values.
  if (rows <= table.max_size() || table.notes().empty() ||
      table.notes() == layout_.notes) {
    return absl::OkStatus();
  }
  return Explain(
      absl::InvalidArgumentError(absl::StrCat(
          "it has ", num_keys(), " rows, of which shard ", shard,
          " of this table gets ", rows, " and holds at most ", table.max_size(),
          ", and nothing says which of them stay: the "
          "table's eviction policy judges by the notes '",
          table.notes(), "', and the checkpoint has ",
          layout_.notes.empty() ? "none"
                                : absl::StrCat("'", layout_.notes, "'"),
          ". Give the table a larger `max_size`, or restore into one without "
          "it, and `evict`")),
      LayoutTensor(tensor_name_));
}

absl::Status TableReader::ReadWorth(int64_t c, const EmbeddingTable& table,
                                    const Moment& now, Tensor* keys,
                                    std::vector<double>* worth) {
  TF_RETURN_IF_ERROR(ReadKeys(c, keys));
  const int64_t n = keys->NumElements();
  worth->resize(n);
  Tensor slice;
  std::vector<uint32_t> notes;
  if (table.notes().empty()) {
    TF_RETURN_IF_ERROR(
        ReadSlice(ValuesTensor(tensor_name_), values_, c, &slice));
  } else {
    TF_RETURN_IF_ERROR(ReadSlice(NotesTensor(tensor_name_), notes_, c, &slice));
    for (int64_t i = 0; i < n; ++i) notes.push_back(NoteOf(slice, i));
  }
  table.JudgeImport(slice.data(), notes.data(), n, now, worth->data());
  return absl::OkStatus();
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
  const int64_t n = keys_.rows[c + 1] - keys_.rows[c];
  TF_RETURN_IF_ERROR(ReadKeys(KeysTensor(tensor_name_), keys_, c, keys));
  Tensor slice;
  TF_RETURN_IF_ERROR(ReadSlice(ValuesTensor(tensor_name_), values_, c, &slice));
  if (value_dtype() == tensorflow::DT_FLOAT && layout.width() == layout_.dim) {
    *rows = std::move(slice);
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(
      Allocate(tensorflow::DT_FLOAT, TensorShape({n, layout.width()}), rows));
  CopyColumns(slice, 0, rows);
  FillColumns(0, layout.meta_begin(), layout.meta_words, rows);
  if (!layout_.notes.empty() && table.notes() == layout_.notes) {
    TF_RETURN_IF_ERROR(ReadSlice(NotesTensor(tensor_name_), notes_, c, &slice));
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
    TF_RETURN_IF_ERROR(ReadSlice(SlotTensor(tensor_name_, slot),
                                 slots_[found - saved.begin()], c, &slice));
    CopyColumns(slice, layout.slot_begin(s), rows);
  }
  return absl::OkStatus();
}

absl::Status TableReader::FindWaiting() {
  const std::string keys = WaitingKeysTensor(tensor_name_);
  if (!files_->Contains(keys)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(FindKeys(keys, &waiting_keys_));
  return FindRows(WaitingSeenTensor(tensor_name_), tensorflow::DT_INT32,
                  waiting_keys_.shape, waiting_keys_, &waiting_seen_);
}

absl::Status TableReader::ReadWaiting(int64_t c, Tensor* keys, Tensor* seen) {
  if (waiting_keys_.rows.empty()) {
    *keys = Tensor(key_dtype(), TensorShape({0}));
    *seen = Tensor(tensorflow::DT_INT32, TensorShape({0}));
    return absl::OkStatus();
  }
  const std::string seen_tensor = WaitingSeenTensor(tensor_name_);
  TF_RETURN_IF_ERROR(
      ReadKeys(WaitingKeysTensor(tensor_name_), waiting_keys_, c, keys));
  TF_RETURN_IF_ERROR(ReadSlice(seen_tensor, waiting_seen_, c, seen));
  const auto times = seen->flat<int32_t>();
  for (int64_t i = 0; i < times.size(); ++i) {
    if (times(i) > 0) continue;
    return Explain(
        absl::DataLossError(absl::StrCat("a key that waits was seen ", times(i),
                                         " times, not even once")),
        seen_tensor);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TableReader::FindCounters(
    const EmbeddingTable::CountersShape& each, int64_t num_shards) {
  if (each.num_blocks == 0) return false;
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (!files_->Contains(tensor)) return false;
  absl::StatusOr<SavedTensor> found = files_->Find(tensor);
  if (!found.ok()) return Explain(found.status(), tensor);
  counters_ = *std::move(found);
  const int64_t blocks = num_shards * each.num_blocks;
  if (counters_.dtype != tensorflow::DT_UINT8 ||
      counters_.shape != TensorShape({blocks, each.block_bytes})) {
    return false;
  }
  if (static_cast<int64_t>(counters_.parts.size()) == blocks) return true;
  return Explain(
      absl::DataLossError("its slices are not those of the shards' blocks"),
      tensor);
}

absl::Status TableReader::ReadCounters(
    const EmbeddingTable::CountersShape& each, int64_t block,
    Tensor* counters) {
  const std::string tensor = WaitingCountersTensor(tensor_name_, each.kind);
  if (FindKept(tensor, block, counters)) return absl::OkStatus();
  *counters = Tensor(tensorflow::DT_UINT8, TensorShape({1, each.block_bytes}));
  const absl::Status status = files_->ReadPart(counters_, block, counters);
  if (!status.ok()) {
    return ExplainPart(status, absl::StrCat("block ", block), tensor);
  }
  Keep(tensor, block, *counters);
  return status;
}

}  // namespace tfembed
