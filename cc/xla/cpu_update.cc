#include "cc/xla/cpu_update.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cc/xla/distinct_rows.h"
#include "cc/xla/rows.h"
#include "xla/service/custom_call_status.h"
#include "xla/service/custom_call_target_registry.h"

namespace tfembed {
namespace {

constexpr char kTarget[] = "TfembedUpdateRows";

// What the program tells the call beside its tensors.
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

// The text is the program's own, and the kernel parsed the rule before: neither
// fails.
extern "C" void TfembedUpdateRows(void* out, const void** in,
                                  const char* opaque, size_t opaque_size,
                                  XlaCustomCallStatus* /*status*/) {
  Call call;
  if (!ParseCall(absl::string_view(opaque, opaque_size), &call)) return;
  const absl::StatusOr<std::unique_ptr<UpdateRule>> rule =
      UpdateRule::Parse(call.rule);
  if (!rule.ok()) return;
  Run(call, **rule, static_cast<void**>(out), in);
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
