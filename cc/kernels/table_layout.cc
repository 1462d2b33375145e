#include "cc/kernels/table_layout.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tfembed {
namespace {

constexpr absl::string_view kHead = "tfembed.hash_table 1";

absl::Status BadLine(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("the layout's line '", line, "' cannot be read"));
}

absl::Status ParseLine(absl::string_view line, TableLayout* layout) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const absl::string_view field = words[0];
  if (field == "dim" && words.size() == 2) {
    if (absl::SimpleAtoi(words[1], &layout->dim) && layout->dim > 0) {
      return absl::OkStatus();
    }
  } else if (field == "seed" && words.size() == 2) {
    if (absl::SimpleAtoi(words[1], &layout->seed)) return absl::OkStatus();
  } else if (field == "rule" && words.size() == 2) {
    layout->slots.owner = std::string(words[1]);
    return absl::OkStatus();
  } else if (field == "slot" && words.size() == 3) {
    float initial_value;
    if (absl::SimpleAtof(words[2], &initial_value)) {
      layout->slots.names.emplace_back(words[1]);
      layout->slots.initial_values.push_back(initial_value);
      return absl::OkStatus();
    }
  }
  return BadLine(line);
}

}  // namespace

std::string TableLayout::ToText() const {
  std::string text = absl::StrCat(kHead, "\ndim ", dim, "\nseed ", seed);
  if (!slots.owner.empty()) absl::StrAppend(&text, "\nrule ", slots.owner);
  for (size_t i = 0; i < slots.names.size(); ++i) {
    absl::StrAppend(&text, "\nslot ", slots.names[i],
                    absl::StrFormat(" %.9g", slots.initial_values[i]));
  }
  return text;
}

absl::StatusOr<TableLayout> TableLayout::Parse(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines[0] != kHead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its format is '", lines[0], "'; this version reads '", kHead, "'"));
  }
  TableLayout layout;
  for (size_t i = 1; i < lines.size(); ++i) {
    const absl::Status status = ParseLine(lines[i], &layout);
    if (!status.ok()) return status;
  }
  if (layout.dim == 0) return BadLine("dim");
  return layout;
}

std::string LayoutTensor(absl::string_view name) {
  return absl::StrCat(name, "/layout");
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

}  // namespace tfembed
