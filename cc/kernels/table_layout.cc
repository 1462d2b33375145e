#include "cc/kernels/table_layout.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cc/kernels/checkpoint_index.h"
#include "cc/kernels/key_batch.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

constexpr absl::string_view kHead = "tfembed.hash_table 1";

// Drafts of this format wrote 2 for a table with `keys` and `values`, and 3 for
// a table with `notes`. The layout was the same, so such files can be read.
bool IsHead(absl::string_view line) {
  return line == kHead || line == "tfembed.hash_table 2" ||
         line == "tfembed.hash_table 3";
}

absl::Status ParseDtype(absl::string_view word, tensorflow::DataType* dtype) {
  if (tensorflow::DataTypeFromString(std::string(word), dtype)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", Printable(word), "' is no dtype of TensorFlow"));
}

absl::Status BadLine(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("the layout's line '", Printable(line), "' cannot be read"));
}

absl::Status ParseLine(absl::string_view line, TableLayout* layout) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const absl::string_view field = words[0];
  if (field == "dim" && words.size() == 2) {
    if (absl::SimpleAtoi(words[1], &layout->dim) && layout->dim >= 0) {
      return absl::OkStatus();
    }
  } else if (field == "keys" && words.size() == 2) {
    tensorflow::DataType dtype;
    TF_RETURN_IF_ERROR(ParseDtype(words[1], &dtype));
    return FindKeyKind(dtype, &layout->keys);
  } else if (field == "values" && words.size() == 2) {
    tensorflow::DataType dtype;
    TF_RETURN_IF_ERROR(ParseDtype(words[1], &dtype));
    return FindValueType(dtype, &layout->values);
  } else if (field == "seed" && words.size() == 2) {
    if (absl::SimpleAtoi(words[1], &layout->seed)) return absl::OkStatus();
  } else if (field == "notes" && words.size() == 2) {
    layout->notes = std::string(words[1]);
    return absl::OkStatus();
  } else if (field == "rule" && words.size() == 2) {
    layout->slots.owner = std::string(words[1]);
    return absl::OkStatus();
  } else if ((field == "slot" || field == "row_slot") && words.size() == 3) {
    float initial_value;
    if (layout->slots.names.size() < kMaxSlots &&
        absl::SimpleAtof(words[2], &initial_value)) {
      if (field == "row_slot") {
        layout->slots.row_wise |= SlotSet{1} << layout->slots.names.size();
      }
      layout->slots.names.emplace_back(words[1]);
      layout->slots.initial_values.push_back(initial_value);
      return absl::OkStatus();
    }
  }
  return BadLine(line);
}

}  // namespace

std::string TableLayout::ToText() const {
  const bool is_plain = keys == KeyKind::kInt64 && values.is_float32();
  std::string text = absl::StrCat(kHead, "\ndim ", dim);
  if (!is_plain) {
    absl::StrAppend(&text, "\nkeys ",
                    tensorflow::DataTypeString(KeyDtype(keys)), "\nvalues ",
                    tensorflow::DataTypeString(ValueDtype(values)));
  }
  absl::StrAppend(&text, "\nseed ", seed);
  if (!slots.owner.empty()) absl::StrAppend(&text, "\nrule ", slots.owner);
  for (size_t i = 0; i < slots.names.size(); ++i) {
    const bool is_row_wise = (slots.row_wise >> i & 1) != 0;
    absl::StrAppend(&text, is_row_wise ? "\nrow_slot " : "\nslot ",
                    slots.names[i],
                    absl::StrFormat(" %.9g", slots.initial_values[i]));
  }
  if (!notes.empty()) absl::StrAppend(&text, "\nnotes ", notes);
  return text;
}

absl::StatusOr<TableLayout> TableLayout::Parse(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (!IsHead(lines[0])) {
    return absl::InvalidArgumentError(
        absl::StrCat("its format is '", Printable(lines[0]),
                     "'; this release reads '", kHead, "'"));
  }
  TableLayout layout;
  layout.dim = -1;
  std::set<absl::string_view> fields;
  for (size_t i = 1; i < lines.size(); ++i) {
    const absl::string_view field = lines[i].substr(0, lines[i].find(' '));
    const bool is_slot = field == "slot" || field == "row_slot";
    if (!IsUtf8(lines[i]) || (!fields.insert(field).second && !is_slot)) {
      return BadLine(lines[i]);
    }
    const absl::Status status = ParseLine(lines[i], &layout);
    if (!status.ok()) return status;
  }
  if (layout.dim < 0) return BadLine("dim");
  return layout;
}

std::string LayoutTensor(absl::string_view name) {
  return absl::StrCat(name, "/layout");
}

std::string TableNameTensor(absl::string_view name) {
  return absl::StrCat(name, "/name");
}

std::string KeysTensor(absl::string_view name) {
  return absl::StrCat(name, "/keys");
}

std::string ValuesTensor(absl::string_view name) {
  return absl::StrCat(name, "/values");
}

std::string SlotTensor(absl::string_view name, absl::string_view slot) {
  return absl::StrCat(name, "/slots/", slot);
}

std::string NotesTensor(absl::string_view name) {
  return absl::StrCat(name, "/notes");
}

std::string WaitingKeysTensor(absl::string_view name) {
  return absl::StrCat(name, "/waiting/keys");
}

std::string WaitingSeenTensor(absl::string_view name) {
  return absl::StrCat(name, "/waiting/seen");
}

std::string WaitingCountersTensor(absl::string_view name,
                                  absl::string_view kind) {
  return absl::StrCat(name, "/waiting/", kind);
}

std::string PartTensor(absl::string_view name, int64_t number) {
  return absl::StrCat(name, "/part_", number);
}

}  // namespace tfembed
