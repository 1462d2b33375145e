#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cc/core/optimizers/update_rule.h"
#include "cc/core/rows/row_addresses.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/support/guard_memory.h"
#include "cc/xla/exchange.h"
#include "cc/xla/rows.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"

namespace tfembed {
namespace {

// The rows of a stack and their slots.
struct RowTensors {
  int64_t rows = 0;
  int64_t width = 0;
  float* values = nullptr;
  std::vector<float*> slots;
  SlotSet row_wise = 0;  // The slots of one float a row.
};

// A callback for a row whose gradient has a NaN or an infinity; returns whether
// to update the row.
using OnNonfinite = absl::FunctionRef<bool(int64_t row)>;

// Sums gradients [n, width] by id and applies the rule once to each row. An id
// outside of [0, rows) has no row.
void UpdateDistinctRows(const UpdateRule& rule, float learning_rate,
                        const int32_t* ids, const float* gradients, int64_t n,
                        OnNonfinite on_nonfinite, RowTensors* tensors);

// Applies each gradient separately, in order.
void UpdateInOrder(const UpdateRule& rule, float learning_rate,
                   const int32_t* ids, const float* gradients, int64_t n,
                   OnNonfinite on_nonfinite, RowTensors* tensors);

constexpr int64_t kBlock = 64;  // Rows that are on their way at once.
constexpr int64_t kLine = 64 / sizeof(float);

// A hash map from each distinct row to the list of its gradients, in order.
// Rows are numbered by their first occurrence. Open addressing, at most half
// full.
class Occurrences {
 public:
  explicit Occurrences(int64_t n) : next_(n, -1) {
    while ((int64_t{1} << bits_) < 2 * n) ++bits_;
    cells_.assign(size_t{1} << bits_, {-1, 0});
    lists_.reserve(n);
  }

  // The i-th gradient belongs to `row`.
  void Add(int32_t row, int32_t i) {
    const size_t mask = cells_.size() - 1;
    // The top bits of a product with 2^32 / phi: consecutive rows spread.
    size_t at = (static_cast<uint32_t>(row) * 2654435769u) >> (32 - bits_);
    for (;; at = (at + 1) & mask) {
      Cell& cell = cells_[at];
      if (cell.row < 0) {
        cell = {row, static_cast<int32_t>(lists_.size())};
        lists_.push_back({row, i, i});
        return;
      }
      if (cell.row != row) continue;
      List& list = lists_[cell.list];
      next_[list.last] = i;
      list.last = i;
      return;
    }
  }

  int64_t size() const { return lists_.size(); }
  int32_t row(int64_t number) const { return lists_[number].row; }

  // The sum of a row's gradients, in the order in which they came.
  void Sum(int64_t number, const float* gradients, int64_t width,
           float* sum) const {
    const int32_t first = lists_[number].first;
    std::memcpy(sum, gradients + first * width, width * sizeof(float));
    for (int32_t i = next_[first]; i >= 0; i = next_[i]) {
      const float* gradient = gradients + i * width;
      for (int64_t c = 0; c < width; ++c) sum[c] += gradient[c];
    }
  }

 private:
  struct Cell {
    int32_t row;
    int32_t list;
  };
  struct List {
    int32_t row;
    int32_t first;
    int32_t last;
  };
  int bits_ = 4;
  std::vector<Cell> cells_;
  std::vector<List> lists_;
  std::vector<int32_t> next_;  // The next entry of the same row, or -1.
};

MutableRow RowAt(const RowTensors& tensors, int64_t row) {
  MutableRow result;
  result.value = tensors.values + row * tensors.width;
  for (size_t s = 0; s < tensors.slots.size(); ++s) {
    result.slots[s] =
        tensors.slots[s] + row * SlotWidth(tensors.row_wise, s, tensors.width);
  }
  return result;
}

// Always inline: see PrefetchRow.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Fetch(const RowTensors& tensors,
                                               const MutableRow& row) {
  for (int64_t c = 0; c < tensors.width; c += kLine) {
    __builtin_prefetch(row.value + c, 1);
    for (size_t s = 0; s < tensors.slots.size(); ++s) {
      if (c < SlotWidth(tensors.row_wise, s, tensors.width)) {
        __builtin_prefetch(row.slots[s] + c, 1);
      }
    }
  }
}

void UpdateDistinctRows(const UpdateRule& rule, float learning_rate,
                        const int32_t* ids, const float* gradients, int64_t n,
                        OnNonfinite on_nonfinite, RowTensors* tensors) {
  const int64_t width = tensors->width;
  Occurrences occurrences(n);
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= 0 && ids[i] < tensors->rows) occurrences.Add(ids[i], i);
  }
  const Kernels& kernels = ActiveKernels();
  // Sums of a block at a time: those of all rows would be as large as the
  // gradients, and fresh memory in each step.
  std::vector<float> sums(kBlock * width);
  std::vector<MutableRow> rows(kBlock);
  for (int64_t begin = 0; begin < occurrences.size(); begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, occurrences.size());
    const int64_t fetched = std::min(end + kBlock, occurrences.size());
    for (int64_t i = end; i < fetched; ++i) {
      Fetch(*tensors, RowAt(*tensors, occurrences.row(i)));
    }
    int64_t kept = 0;
    for (int64_t i = begin; i < end; ++i) {
      float* sum = sums.data() + kept * width;
      occurrences.Sum(i, gradients, width, sum);
      const int32_t row = occurrences.row(i);
      if (!kernels.all_finite(sum, width) && !on_nonfinite(row)) continue;
      rows[kept++] = RowAt(*tensors, row);
    }
    rule.Apply(rows.data(), sums.data(), kept, width, learning_rate);
  }
}

void UpdateInOrder(const UpdateRule& rule, float learning_rate,
                   const int32_t* ids, const float* gradients, int64_t n,
                   OnNonfinite on_nonfinite, RowTensors* tensors) {
  const Kernels& kernels = ActiveKernels();
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= tensors->rows) continue;
    const float* gradient = gradients + i * tensors->width;
    if (!kernels.all_finite(gradient, tensors->width) &&
        !on_nonfinite(ids[i])) {
      continue;
    }
    const MutableRow row = RowAt(*tensors, ids[i]);
    rule.Apply(&row, gradient, 1, tensors->width, learning_rate);
  }
}

constexpr char kTarget[] = "TfembedUpdateRows";

// The program's arguments to the call beside its tensors.
struct Call {
  std::string rule;
  bool skip_nonfinite = true;
  int64_t n = 0;
  int64_t width = 0;
  std::vector<int64_t> table_rows;

  std::string Text() const {
    return absl::StrCat(rule, "|", skip_nonfinite ? 1 : 0, "|", n, "|", width,
                        "|", absl::StrJoin(table_rows, ","));
  }
};

bool ParseCall(absl::string_view text, Call* call) {
  const std::vector<std::string> parts = absl::StrSplit(text, '|');
  if (parts.size() != 5) return false;
  call->rule = parts[0];
  call->skip_nonfinite = parts[1] == "1";
  if (!absl::SimpleAtoi(parts[2], &call->n)) return false;
  if (!absl::SimpleAtoi(parts[3], &call->width)) return false;
  for (absl::string_view rows : absl::StrSplit(parts[4], ',')) {
    if (!absl::SimpleAtoi(rows, &call->table_rows.emplace_back())) return false;
  }
  return true;
}

int64_t TableOf(const std::vector<int64_t>& table_rows, int64_t row) {
  int64_t table = 0;
  while (row >= table_rows[table]) row -= table_rows[table++];
  return table;
}

// The tensors are those of UpdateOnCpu below, in its order.
void Run(const Call& call, const UpdateRule& rule, void** out,
         const void** in) {
  const int num_slots = rule.slot_names().size();
  int64_t rows = 0;
  for (int64_t table : call.table_rows) rows += table;
  for (int i = 0; i <= num_slots; ++i) {
    if (out[i] == in[i]) continue;  // As is asked for, but not promised.
    const bool row_wise = i > 0 && (rule.row_wise_slots() >> (i - 1) & 1);
    std::memcpy(out[i], in[i],
                sizeof(float) * rows * (row_wise ? 1 : call.width));
  }
  RowTensors tensors;
  tensors.rows = rows;
  tensors.width = call.width;
  tensors.values = static_cast<float*>(out[0]);
  for (int s = 0; s < num_slots; ++s) {
    tensors.slots.push_back(static_cast<float*>(out[1 + s]));
  }
  tensors.row_wise = rule.row_wise_slots();
  const auto* ids = static_cast<const int32_t*>(in[num_slots + 1]);
  const auto* gradients = static_cast<const float*>(in[num_slots + 2]);
  const float rate = *static_cast<const float*>(in[num_slots + 3]);
  auto* nonfinite = static_cast<int32_t*>(out[num_slots + 1]);
  std::memset(nonfinite, 0, sizeof(int32_t) * call.table_rows.size());
  const auto count = [&](int64_t row) {
    ++nonfinite[TableOf(call.table_rows, row)];
    return !call.skip_nonfinite;
  };
  if (rule.accumulate()) {
    UpdateDistinctRows(rule, rate, ids, gradients, call.n, count, &tensors);
  } else {
    UpdateInOrder(rule, rate, ids, gradients, call.n, count, &tensors);
  }
}

}  // namespace

// Parsing cannot fail: the program wrote the text, and the kernel has parsed
// the rule before. Memory is refused before a row changes, if it is.
extern "C" void TfembedUpdateRows(void* out, const void** in,
                                  const char* opaque, size_t opaque_size,
                                  XlaCustomCallStatus* status) {
  const auto run = [&] {
    Call call;
    if (!ParseCall(absl::string_view(opaque, opaque_size), &call)) return;
    const absl::StatusOr<std::unique_ptr<UpdateRule>> rule =
        UpdateRule::Parse(call.rule);
    if (!rule.ok()) return;
    Run(call, **rule, static_cast<void**>(out), in);
  };
  // TensorFlow exports no function that writes a status. So short a message
  // takes no memory.
  GuardMemory(run, [&] { status->message.emplace("out of memory"); });
}

XLA_CPU_REGISTER_CUSTOM_CALL_TARGET_WITH_SYM(kTarget, &TfembedUpdateRows);

UpdatedRows UpdateOnCpu(const RowTraining& training,
                        const std::string& rule_text, xla::XlaOp learning_rate,
                        xla::XlaOp ids, xla::XlaOp gradients,
                        TrainedRows state) {
  xla::XlaBuilder* builder = ids.builder();
  Call call;
  call.rule = rule_text;
  call.skip_nonfinite = training.skip_nonfinite;
  call.n = DimensionSize(ids, 0);
  call.width = DimensionSize(gradients, 1);
  call.table_rows = training.table_rows;
  std::vector<xla::XlaOp> operands = {state.values};
  operands.insert(operands.end(), state.slots.begin(), state.slots.end());
  const int64_t in_place = operands.size();
  for (xla::XlaOp op : {ids, gradients, learning_rate}) operands.push_back(op);
  std::vector<xla::Shape> shapes;
  for (xla::XlaOp op : operands) {
    absl::StatusOr<xla::Shape> shape = builder->GetShape(op);
    if (!shape.ok())
      return {std::move(state), builder->ReportError(shape.status())};
    // Rows one after another, which the call counts on.
    xla::LayoutUtil::SetToDefaultLayout(&*shape);
    shapes.push_back(*std::move(shape));
  }
  std::vector<xla::Shape> results(shapes.begin(), shapes.begin() + in_place);
  results.push_back(xla::ShapeUtil::MakeShape(
      xla::S32, {static_cast<int64_t>(call.table_rows.size())}));
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliases;
  for (int64_t i = 0; i < in_place; ++i) aliases.push_back({{i}, {i, {}}});
  const xla::XlaOp done = xla::CustomCallWithLayout(
      builder, kTarget, operands, xla::ShapeUtil::MakeTupleShape(results),
      shapes, call.Text(), /*has_side_effect=*/false, aliases,
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_STATUS_RETURNING_UNIFIED);
  state.values = xla::GetTupleElement(done, 0);
  for (size_t s = 0; s < state.slots.size(); ++s) {
    state.slots[s] = xla::GetTupleElement(done, 1 + s);
  }
  state.nonfinite = xla::GetTupleElement(done, in_place);
  return {std::move(state), ConstantInt(builder, 1)};
}

}  // namespace tfembed
