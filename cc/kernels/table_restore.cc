#include "cc/kernels/table_restore.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/string_keys.h"
#include "cc/kernels/checkpoint_choice.h"
#include "cc/kernels/checkpoint_repeats.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/mapped_tensor.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/table_writer.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::Tensor;

// On average, after growth (hash_index.h).
constexpr int64_t kIndexBytesPerKey = 22;

// Chunks that are under way at a time: each takes up to twice its bytes.
constexpr int64_t kMostChunks = 3;
constexpr int64_t kChunkCopies = 2;

int64_t Remainder(int64_t key, int64_t num_shards) {
  const int64_t remainder = key % num_shards;
  return remainder < 0 ? remainder + num_shards : remainder;
}

absl::Status Import(const Tensor& keys, const Tensor& rows,
                    EmbeddingTable* table, Executor* executor) {
  const int64_t width = rows.dim_size(1);
  const float* const full_rows = rows.flat<float>().data();
  if (keys.dtype() != tensorflow::DT_STRING) {
    const auto numbers = keys.flat<int64_t>();
    return table->Import({numbers.data(), static_cast<size_t>(numbers.size())},
                         width, full_rows, executor);
  }
  KeyBatch batch;
  TF_RETURN_IF_ERROR(
      batch.ReadStrings(*table, ViewsOf(keys), NewKeys::kAdd, executor));
  return table->Import(batch.span(), width, full_rows, executor);
}

// Copies the keys and rows at these positions together.
absl::Status Gather(const std::vector<int32_t>& positions, const Tensor& keys,
                    const Tensor& rows, Tensor* own_keys, Tensor* own_rows) {
  const auto n = static_cast<int64_t>(positions.size());
  const int64_t width = rows.dim_size(1);
  auto key_memory = MapTensor(keys.dtype(), {n});
  if (!key_memory.ok()) return key_memory.status();
  auto row_memory = MapTensor(rows.dtype(), {n, width});
  if (!row_memory.ok()) return row_memory.status();
  *own_keys = *std::move(key_memory);
  *own_rows = *std::move(row_memory);
  const float* const from = rows.flat<float>().data();
  float* const to = own_rows->flat<float>().data();
  for (int64_t i = 0; i < n; ++i) {
    CopyRow(from + positions[i] * width, to + i * width, width);
    if (keys.dtype() == tensorflow::DT_STRING) {
      own_keys->flat<tensorflow::tstring>()(i) =
          keys.flat<tensorflow::tstring>()(positions[i]);
    } else {
      own_keys->flat<int64_t>()(i) = keys.flat<int64_t>()(positions[i]);
    }
  }
  return absl::OkStatus();
}

std::string Describe(const SlotLayout& slots) {
  return absl::StrCat("'", slots.owner, "' (", absl::StrJoin(slots.names, ", "),
                      ")");
}

}  // namespace

TableRestore::TableRestore(Options options, CheckpointFiles* files)
    : options_(std::move(options)),
      local_(options_.all_shards, -1),
      reader_(std::make_unique<TableReader>(options_.table_name,
                                            options_.tensor_name, files)),
      num_keys_(new std::atomic<int64_t>[options_.shards.size()]()) {
  for (size_t s = 0; s < options_.shards.size(); ++s) {
    local_[options_.shard_numbers[s]] = static_cast<int64_t>(s);
  }
}

absl::Status TableRestore::Check(Executor* executor) {
  if (options_.deal_rows && options_.all_shards > 1 &&
      options_.shards[0]->strings() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Table '", options_.table_name, "' has string keys and ",
        options_.all_shards, " shards; `deal_rows` must be false for it."));
  }
  for (const EmbeddingTable* shard : options_.shards) {
    if (shard->counters_shape() != options_.shards[0]->counters_shape()) {
      return ShardsDiffer();
    }
  }
  TF_RETURN_IF_ERROR(reader_->Open(*options_.shards[0]));
  TF_RETURN_IF_ERROR(CheckSlots());
  // A table that serves trains nothing: no key waits there.
  if (options_.load_slots) TF_RETURN_IF_ERROR(CheckWaiting());
  TF_RETURN_IF_ERROR(ForEachCounters([](EmbeddingTable*, int64_t, auto) {}));
  return CheckRows(executor);
}

absl::Status TableRestore::CheckRows(Executor* executor) {
  ProgressLog progress(
      absl::StrCat("Checking saved table '", options_.table_name, "'"),
      reader_->num_keys());
  const auto twice = FindRepeatedKey(
      reader_->num_keys(), [&](bool again, const TakeKeys& take) {
        return ForEachChunk(executor, [&](int64_t c, Executor*) {
          Tensor keys;
          TF_RETURN_IF_ERROR(again ? reader_->ReadKeys(c, &keys)
                                   : reader_->VerifyChunk(c, &keys));
          if (!again) CountKeys(keys);
          if (!again) progress.Add(keys.NumElements());
          take(keys);
          return absl::OkStatus();
        });
      });
  if (!twice.ok()) return twice.status();
  if (!twice->has_value()) return Choose();
  return reader_->RefuseKey(**twice, /*waits=*/false);
}

absl::Status TableRestore::Choose() {
  if (!options_.deal_rows) return absl::OkStatus();
  const std::vector<int64_t> counts(num_keys_.get(),
                                    num_keys_.get() + options_.shards.size());
  auto stays = ChooseRows(
      options_.shards, counts,
      [this](const Tensor& keys, int64_t i, int64_t) {
        return ShardOf(keys, i);
      },
      reader_.get());
  if (!stays.ok()) return stays.status();
  stays_ = *std::move(stays);
  return absl::OkStatus();
}

// REQUIRES: deal_rows, so that keys of several shards are numbers.
int64_t TableRestore::ShardOf(const Tensor& keys, int64_t i) const {
  const int64_t num_shards = options_.all_shards;
  if (num_shards == 1) return 0;
  return local_[Remainder(keys.flat<int64_t>()(i), num_shards)];
}

// Where Python deals the keys, the shards' part of them on average.
int64_t TableRestore::OwnKeys() const {
  if (!options_.deal_rows) {
    return total_keys_ * static_cast<int64_t>(options_.shards.size()) /
           options_.all_shards;
  }
  return std::accumulate(num_keys_.get(),
                         num_keys_.get() + options_.shards.size(), int64_t{0});
}

absl::Status TableRestore::CheckWaiting() {
  const auto twice = FindRepeatedKey(
      reader_->num_waiting(), [&](bool, const TakeKeys& take) -> absl::Status {
        for (int64_t c = 0; c < reader_->num_waiting_chunks(); ++c) {
          Tensor keys, seen;
          TF_RETURN_IF_ERROR(reader_->ReadWaiting(c, &keys, &seen));
          take(keys);
        }
        return absl::OkStatus();
      });
  if (!twice.ok()) return twice.status();
  if (!twice->has_value()) return absl::OkStatus();
  return reader_->RefuseKey(**twice, /*waits=*/true);
}

// Checksums and copies keep a core busy, so chunks are dealt to threads.
absl::Status TableRestore::ForEachChunk(Executor* executor,
                                        const ChunkBody& body) const {
  const int64_t chunks = reader_->num_chunks();
  const int64_t threads = executor->num_threads();
  const int64_t tasks = std::min({chunks, threads, kMostChunks});
  Executor* const own = tasks < threads ? executor : nullptr;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  FirstError error;
  ParallelFor(executor, tasks, [&](int64_t) {
    while (!failed) {
      const int64_t c = next++;
      if (c >= chunks) break;
      const absl::Status status = body(c, own);
      if (!status.ok()) failed = true;
      error.Update(c, status);
    }
  });
  return error.status();
}

void TableRestore::CountKeys(const Tensor& keys) {
  total_keys_ += keys.NumElements();
  if (keys.dtype() == tensorflow::DT_STRING) {
    int64_t bytes = 0;
    for (absl::string_view text : ViewsOf(keys)) {
      bytes += kIndexBytesPerKey + static_cast<int64_t>(sizeof(StringCell));
      if (text.size() > StringCell::kInlineBytes) bytes += text.size();
    }
    string_bytes_ += bytes;
  }
  if (!options_.deal_rows) return;
  if (options_.all_shards == 1) {
    num_keys_[0] += keys.NumElements();
    return;
  }
  std::vector<int64_t> counts(options_.shards.size());
  for (int64_t i = 0; i < keys.NumElements(); ++i) {
    const int64_t shard = ShardOf(keys, i);
    if (shard >= 0) ++counts[shard];
  }
  for (size_t s = 0; s < counts.size(); ++s) num_keys_[s] += counts[s];
}

bool TableRestore::HasSavedSlots() const {
  return options_.load_slots && !layout().slots.names.empty();
}

absl::Status TableRestore::CheckSlots() const {
  if (!HasSavedSlots()) return absl::OkStatus();
  const SlotLayout& saved = layout().slots;
  for (const EmbeddingTable* shard : options_.shards) {
    const SlotLayout slots = shard->slots();
    if (slots.owner.empty()) {
      const absl::Status fits = CheckSlotLayout(saved, shard->type());
      if (fits.ok()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "Table '", options_.table_name, "' cannot be restored: '",
          options_.tensor_name, "': ", fits.message()));
    }
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

int64_t TableRestore::BytesOfKey() const {
  const EmbeddingTable& first = *options_.shards[0];
  int64_t words = first.full_width();
  if (HasSavedSlots() && first.slots().owner.empty()) {
    const SlotLayout& saved = layout().slots;
    for (size_t i = 0; i < saved.names.size(); ++i) {
      words += SlotWidth(saved.row_wise, i, first.dim());
    }
  }
  return words * RowLayout::kWordBytes + kIndexBytesPerKey;
}

int64_t TableRestore::MoreBytes() const {
  int64_t bytes = 0, bound = 0;
  for (const EmbeddingTable* shard : options_.shards) {
    const TableStats stats = shard->stats();
    bytes -= stats.row_bytes + stats.index_bytes;
    bound += shard->max_size();
  }
  // A bound of 0 is none, and all shards have one or none has.
  int64_t keys = OwnKeys();
  if (bound > 0) keys = std::min(keys, bound);
  return bytes + keys * BytesOfKey() +
         string_bytes_ * static_cast<int64_t>(options_.shards.size()) /
             options_.all_shards;
}

int64_t TableRestore::BufferBytes() const {
  const int64_t chunks = std::min(kMostChunks, reader_->num_chunks());
  return kChunkCopies * std::min(chunks * kChunkBytes,
                                 total_keys_ * BytesOfKey() + string_bytes_);
}

absl::Status TableRestore::Replace(Executor* executor) {
  const std::vector<const EmbeddingTable*> tables(options_.shards.begin(),
                                                  options_.shards.end());
  const auto replaced = LockWhole<ReplacedTables::value_type>(tables);
  absl::Status status = Clear();
  if (status.ok() && options_.deal_rows) status = DealRows(executor);
  if (status.ok()) {
    status = ForEachCounters([](EmbeddingTable* shard, int64_t block,
                                absl::Span<const uint8_t> counters) {
      shard->ImportCounters(block, counters);
    });
  }
  if (status.ok()) return status;
  for (EmbeddingTable* shard : options_.shards) shard->Clear();
  return status;
}

// A table that serves trains nothing, and needs no counters.
absl::Status TableRestore::ForEachCounters(const CountersBody& body) {
  const auto each = options_.shards[0]->counters_shape();
  const int64_t num_shards = options_.all_shards;
  if (!options_.load_slots) return absl::OkStatus();
  if (!has_counters_.has_value()) {
    const auto found = reader_->FindCounters(each, num_shards);
    if (!found.ok()) return found.status();
    has_counters_ = *found;
  }
  const int64_t rows = *has_counters_ ? num_shards * each.num_blocks : 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t shard = local_[row / each.num_blocks];
    if (shard < 0) continue;
    Tensor counters;
    TF_RETURN_IF_ERROR(reader_->ReadCounters(each, row, &counters));
    body(options_.shards[shard], row % each.num_blocks,
         {counters.flat<uint8_t>().data(),
          static_cast<size_t>(each.block_bytes)});
  }
  return absl::OkStatus();
}

absl::Status TableRestore::DealRows(Executor* executor) {
  ProgressLog progress(
      absl::StrCat("Restoring table '", options_.table_name, "'"),
      reader_->num_keys());
  return ForEachChunk(executor, [&](int64_t c, Executor* own) {
    return DealChunk(c, own, &progress);
  });
}

absl::Status TableRestore::Clear() {
  for (size_t s = 0; s < options_.shards.size(); ++s) {
    EmbeddingTable* const shard = options_.shards[s];
    // An attached optimizer's initial values stay.
    if (HasSavedSlots() && shard->slots().owner.empty()) {
      shard->Clear();
      TF_RETURN_IF_ERROR(shard->SetSlots(layout().slots));
    }
    TF_RETURN_IF_ERROR(shard->ClearFor(num_keys_[s]));
    if (!options_.keep_seed) shard->SetSeed(layout().seed);
  }
  return absl::OkStatus();
}

absl::Status TableRestore::DealChunk(int64_t chunk, Executor* executor,
                                     ProgressLog* progress) {
  tensorflow::Tensor keys, rows;
  TF_RETURN_IF_ERROR(reader_->ReadChunk(chunk, *options_.shards[0],
                                        options_.load_slots, &keys, &rows));
  progress->Add(keys.NumElements());
  if (options_.all_shards == 1 && stays_.empty()) {
    return Import(keys, rows, options_.shards[0], executor);
  }
  std::vector<std::vector<int32_t>> positions(options_.shards.size());
  for (int64_t i = 0; i < keys.NumElements(); ++i) {
    if (!stays_.empty() && !stays_[reader_->first_row(chunk) + i]) continue;
    const int64_t shard = ShardOf(keys, i);
    if (shard >= 0) positions[shard].push_back(static_cast<int32_t>(i));
  }
  for (size_t s = 0; s < positions.size(); ++s) {
    Tensor own_keys, own_rows;
    TF_RETURN_IF_ERROR(Gather(positions[s], keys, rows, &own_keys, &own_rows));
    TF_RETURN_IF_ERROR(
        Import(own_keys, own_rows, options_.shards[s], executor));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
