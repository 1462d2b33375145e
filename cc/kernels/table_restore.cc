#include "cc/kernels/table_restore.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/kernels/key_batch.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::Tensor;

// The keys of one shard and their rows, copied together.
struct ShardRows {
  std::vector<int64_t> keys;
  std::vector<float> rows;
};

std::vector<ShardRows> Deal(absl::Span<const int64_t> keys, const float* rows,
                            int64_t width, int64_t num_shards) {
  std::vector<ShardRows> shards(num_shards);
  for (const int64_t key : keys) {
    const int64_t remainder = key % num_shards;
    ShardRows& shard =
        shards[remainder < 0 ? remainder + num_shards : remainder];
    shard.keys.push_back(key);
    shard.rows.insert(shard.rows.end(), rows, rows + width);
    rows += width;
  }
  return shards;
}

absl::Status ImportStrings(const Tensor& keys, const Tensor& rows,
                           EmbeddingTable* table, Executor* executor) {
  KeyBatch batch;
  TF_RETURN_IF_ERROR(
      batch.ReadStrings(*table, ViewsOf(keys), NewKeys::kAdd, executor));
  return table->Import(batch.span(), rows.dim_size(1),
                       rows.flat<float>().data(), executor);
}

std::string Describe(const SlotLayout& slots) {
  return absl::StrCat("'", slots.owner, "' (", absl::StrJoin(slots.names, ", "),
                      ")");
}

}  // namespace

TableRestore::TableRestore(Options options, CheckpointFiles* files)
    : options_(std::move(options)),
      reader_(std::make_unique<TableReader>(options_.table_name,
                                            options_.tensor_name, files)) {}

absl::Status TableRestore::Check() {
  if (options_.deal_rows && options_.shards.size() > 1 &&
      options_.shards[0]->strings() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Table '", options_.table_name, "' has string keys and ",
        options_.shards.size(), " shards; `deal_rows` must be false for it."));
  }
  TF_RETURN_IF_ERROR(reader_->Open(*options_.shards[0]));
  TF_RETURN_IF_ERROR(CheckSlots());
  return reader_->Verify();
}

bool TableRestore::HasSavedSlots() const {
  return options_.load_slots && !layout().slots.names.empty();
}

absl::Status TableRestore::CheckSlots() const {
  if (!HasSavedSlots()) return absl::OkStatus();
  const SlotLayout& saved = layout().slots;
  for (const EmbeddingTable* shard : options_.shards) {
    const SlotLayout slots = shard->slots();
    if (slots.owner.empty()) continue;
    if (slots.owner == saved.owner && slots.names == saved.names &&
        slots.row_wise == saved.row_wise)
      continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Table '", options_.table_name, "' cannot be restored: '",
        options_.tensor_name, "' was saved with the slots of ", Describe(saved),
        "; the table has those of ", Describe(slots),
        ". Attach the saved rule's optimizer, or restore into a table without "
        "one and `upsert` its export."));
  }
  return absl::OkStatus();
}

absl::Status TableRestore::Replace(Executor* executor) {
  TF_RETURN_IF_ERROR(Clear());
  if (!options_.deal_rows) return absl::OkStatus();
  for (int64_t c = 0; c < reader_->num_chunks(); ++c) {
    TF_RETURN_IF_ERROR(DealChunk(c, executor));
  }
  return absl::OkStatus();
}

absl::Status TableRestore::Clear() {
  for (EmbeddingTable* shard : options_.shards) {
    shard->Clear();
    // An attached optimizer's initial values stay.
    if (HasSavedSlots() && shard->slots().owner.empty()) {
      TF_RETURN_IF_ERROR(shard->SetSlots(layout().slots));
    }
    if (!options_.keep_seed) shard->SetSeed(layout().seed);
  }
  return absl::OkStatus();
}

absl::Status TableRestore::DealChunk(int64_t chunk, Executor* executor) {
  tensorflow::Tensor keys, rows;
  TF_RETURN_IF_ERROR(reader_->ReadChunk(chunk, *options_.shards[0],
                                        options_.load_slots, &keys, &rows));
  const float* full_rows = rows.flat<float>().data();
  if (keys.dtype() == tensorflow::DT_STRING) {
    return ImportStrings(keys, rows, options_.shards[0], executor);
  }
  const absl::Span<const int64_t> all(keys.flat<int64_t>().data(),
                                      keys.NumElements());
  const int64_t n = static_cast<int64_t>(options_.shards.size());
  const int64_t width = rows.dim_size(1);
  if (n == 1) {
    return options_.shards[0]->Import(all, width, full_rows, executor);
  }
  const std::vector<ShardRows> parts = Deal(all, full_rows, width, n);
  for (int64_t s = 0; s < n; ++s) {
    TF_RETURN_IF_ERROR(options_.shards[s]->Import(
        parts[s].keys, width, parts[s].rows.data(), executor));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
