// Kernels that bring the shards of a table, with all that its policies noted,
// into tensors, and that replace what a table holds by tensors or by a saved
// table.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/checkpoint_files.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/table_reader.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

constexpr int64_t kChunk = 4096;  // Keys that are copied at a time.

// The shards of one table, all of one moment while it lives: writers wait.
class FrozenShards {
 public:
  // Finds and freezes the tables of all inputs. InvalidArgument where they are
  // not of the outputs' dtypes or cannot be shards of one table.
  absl::Status Freeze(OpKernelContext* context) {
    for (int i = 0; i < context->num_inputs(); ++i) {
      TablePtr table;
      TF_RETURN_IF_ERROR(FindTableOfKeys(context, i, &table));
      TF_RETURN_IF_ERROR(
          CheckValueDtype(*table, context->expected_output_dtype(1)));
      if (std::find(tables_.begin(), tables_.end(), table->table()) !=
          tables_.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("`tables` must be different ones; got '",
                         table->name(), "' twice."));
      }
      tables_.push_back(table->table());
      owners_.push_back(std::move(table));
    }
    // The locks come first: what is read below is of their moment.
    keys_ = std::make_unique<KeyOutput>(tables_);
    frozen_ = FreezeAll(tables_);
    return CheckAlike();
  }

  // Lets writers go on: all has been copied.
  void Thaw() { frozen_.clear(); }

  size_t size() const { return tables_.size(); }
  const EmbeddingTable& table(size_t i) const { return *tables_[i]; }
  const EmbeddingTable::Snapshot& frozen(size_t i) const { return *frozen_[i]; }
  const RowLayout& layout() const { return frozen_[0]->layout(); }
  KeyOutput* keys() { return keys_.get(); }

  // `count` of each shard.
  template <typename Count>
  std::vector<int64_t> Sizes(Count count) const {
    std::vector<int64_t> sizes;
    for (const auto& shard : frozen_) sizes.push_back(count(*shard));
    return sizes;
  }

 private:
  absl::Status CheckAlike() const {
    for (size_t i = 1; i < size(); ++i) {
      const RowLayout& other = frozen_[i]->layout();
      const bool differ =
          other.dim != layout().dim || other.width() != layout().width() ||
          other.row_wise != layout().row_wise ||
          frozen_[i]->slots().names != frozen_[0]->slots().names ||
          tables_[i]->notes() != tables_[0]->notes() ||
          tables_[i]->counters_shape() != tables_[0]->counters_shape();
      if (!differ) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "All `tables` must be shards of one table, with the same dim, slots "
          "and policies; got '",
          owners_[0]->name(), "' of dim ", layout().dim, " and ",
          layout().slot_words(), " floats of slots, and '", owners_[i]->name(),
          "' of dim ", other.dim, " and ", other.slot_words(), "."));
    }
    return absl::OkStatus();
  }

  std::vector<TablePtr> owners_;
  std::vector<const EmbeddingTable*> tables_;
  std::unique_ptr<KeyOutput> keys_;
  std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> frozen_;
};

class TableSnapshotOp : public OpKernel {
 public:
  explicit TableSnapshotOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("only_rows", &only_rows_));
  }

  void Compute(OpKernelContext* context) override {
    FrozenShards shards;
    OP_REQUIRES_OK(context, shards.Freeze(context));
    OP_REQUIRES_OK(context, CopyRows(context, &shards));
    OP_REQUIRES_OK(context, CopyWaiting(context, &shards));
    OP_REQUIRES_OK(context, CopyCounters(context, shards));
    Tensor* kinds;
    OP_REQUIRES_OK(context,
                   context->allocate_output(7, TensorShape({2}), &kinds));
    if (!only_rows_) {
      kinds->flat<tstring>()(0) = std::string(shards.table(0).notes());
      kinds->flat<tstring>()(1) = shards.table(0).counters_shape().kind;
    }
    shards.Thaw();
    shards.keys()->Finish();  // Naming strings takes longer than all else.
  }

 private:
  absl::Status CopyRows(OpKernelContext* context, FrozenShards* shards) const {
    const RowLayout& layout = shards->layout();
    const bool has_notes = !only_rows_ && !shards->table(0).notes().empty();
    const std::vector<int64_t> sizes =
        shards->Sizes([](const auto& shard) { return shard.size(); });
    auto key_to = shards->keys()->Allocate(context, 0, sizes);
    if (!key_to.ok()) return key_to.status();
    const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    Tensor *values, *slots, *notes;
    TF_RETURN_IF_ERROR(
        context->allocate_output(1, TensorShape({n, layout.dim}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(
        2, TensorShape({n, layout.slot_words()}), &slots));
    TF_RETURN_IF_ERROR(
        context->allocate_output(3, TensorShape({has_notes ? n : 0}), &notes));
    Columns to = {*key_to, static_cast<char*>(values->data()),
                  slots->flat<float>().data(),
                  has_notes ? notes->flat<int64_t>().data() : nullptr};
    TfExecutor executor(context);
    for (size_t s = 0; s < shards->size(); ++s) {
      CopyShard(shards->frozen(s), layout, to, &executor);
      to = to.From(sizes[s], layout);
    }
    return absl::OkStatus();
  }

  // Where rows go, column by column.
  struct Columns {
    int64_t* keys;
    char* values;
    float* slots;
    int64_t* notes;  // Null: nowhere.

    Columns From(int64_t row, const RowLayout& layout) const {
      return {keys + row, values + row * layout.value_bytes(),
              slots + row * layout.slot_words(),
              notes == nullptr ? nullptr : notes + row};
    }
  };

  static void CopyShard(const EmbeddingTable::Snapshot& frozen,
                        const RowLayout& layout, const Columns& columns,
                        TfExecutor* executor) {
    const int64_t value_bytes = layout.value_bytes(),
                  slots_begin = layout.slots_begin(),
                  slot_words = layout.slot_words();
    frozen.VisitBlocks(
        [&](int64_t first, absl::Span<const int64_t> keys,
            const float* const* rows) {
          Columns to = columns.From(first, layout);
          for (size_t i = 0; i < keys.size(); ++i) {
            to.keys[i] = keys[i];
            CopyBytes(rows[i], to.values, value_bytes);
            to.values += value_bytes;
            CopyRow(rows[i] + slots_begin, to.slots, slot_words);
            to.slots += slot_words;
            if (to.notes != nullptr) to.notes[i] = frozen.Note(rows[i]);
          }
        },
        executor);
  }

  absl::Status CopyWaiting(OpKernelContext* context,
                           FrozenShards* shards) const {
    const std::vector<int64_t> sizes = shards->Sizes([&](const auto& shard) {
      return only_rows_ ? 0 : shard.num_waiting();
    });
    auto key_to = shards->keys()->Allocate(context, 4, sizes);
    if (!key_to.ok()) return key_to.status();
    const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    Tensor* seen;
    TF_RETURN_IF_ERROR(context->allocate_output(5, TensorShape({n}), &seen));
    int32_t* seen_to = seen->flat<int32_t>().data();
    for (size_t s = 0; s < shards->size(); ++s) {
      if (sizes[s] == 0) continue;
      TF_RETURN_IF_ERROR(shards->frozen(s).VisitWaiting(
          kChunk, [&](absl::Span<const int64_t> chunk,
                      absl::Span<const int32_t> times) {
            *key_to = std::copy(chunk.begin(), chunk.end(), *key_to);
            seen_to = std::copy(times.begin(), times.end(), seen_to);
            return absl::OkStatus();
          }));
    }
    return absl::OkStatus();
  }

  absl::Status CopyCounters(OpKernelContext* context,
                            const FrozenShards& shards) const {
    const auto each = shards.table(0).counters_shape();
    const int64_t blocks = only_rows_ ? 0 : each.num_blocks;
    const auto num_shards = static_cast<int64_t>(shards.size());
    Tensor* counters;
    TF_RETURN_IF_ERROR(context->allocate_output(
        6, TensorShape({num_shards * blocks, each.block_bytes}), &counters));
    uint8_t* to = counters->flat<uint8_t>().data();
    for (int64_t row = 0; row < num_shards * blocks; ++row) {
      const absl::Span<const uint8_t> from =
          shards.frozen(row / blocks).counters(row % blocks);
      to = std::copy(from.begin(), from.end(), to);
    }
    return absl::OkStatus();
  }

  bool only_rows_ = false;
};

class TableImportNotesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &notes = context->input(2);
    OP_REQUIRES(context, notes.dims() == 1 && notes.shape() == keys.shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`keys` and `notes` must be vectors of one length; got ",
                    keys.shape().DebugString(), " and ",
                    notes.shape().DebugString(), ".")));
    tstring kind;
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "kind", &kind));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context,
                   batch.Read(*table, keys, NewKeys::kIgnore, &executor));
    if (absl::string_view(kind) != table->table()->notes()) return;
    constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
    std::vector<uint32_t> words;
    for (int64_t i = 0; i < notes.NumElements(); ++i) {
      words.push_back(static_cast<uint32_t>(
          std::clamp<int64_t>(notes.flat<int64_t>()(i), 0, kMost)));
    }
    OP_REQUIRES_OK(context, NameTable(*table, table->table()->ImportNotes(
                                                  batch.span(), words)));
  }
};

class TableImportCountersOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor& counters = context->input(1);
    tstring kind;
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "kind", &kind));
    const auto own = table->table()->counters_shape();
    if (absl::string_view(kind) != own.kind ||
        counters.shape() != TensorShape({own.num_blocks, own.block_bytes})) {
      return;
    }
    const uint8_t* from = counters.flat<uint8_t>().data();
    for (int64_t block = 0; block < own.num_blocks; ++block) {
      table->table()->ImportCounters(
          block, {from, static_cast<size_t>(own.block_bytes)});
      from += own.block_bytes;
    }
  }
};

TFEMBED_KERNEL(TableSnapshot, TableSnapshotOp);
TFEMBED_KERNEL(TableImportNotes, TableImportNotesOp);
TFEMBED_KERNEL(TableImportCounters, TableImportCountersOp);

// The first `n` inputs.
absl::Status FindTables(OpKernelContext* context, int n,
                        std::vector<TablePtr>* tables) {
  for (int i = 0; i < n; ++i) {
    TF_RETURN_IF_ERROR(FindTable(context, i, &tables->emplace_back()));
  }
  return absl::OkStatus();
}

// While they are locked exports and saves wait.
ReplacedTables Replace(const std::vector<TablePtr>& owners) {
  std::vector<const EmbeddingTable*> tables;
  for (const TablePtr& owner : owners) tables.push_back(owner->table());
  return LockWhole<ReplacedTables::value_type>(tables);
}

class TableClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<TablePtr> tables;
    OP_REQUIRES_OK(context,
                   FindTables(context, context->num_inputs(), &tables));
    const ReplacedTables replaced = Replace(tables);
    for (const TablePtr& table : tables) table->table()->Clear();
  }
};

class TableReplaceOp : public OpKernel {
 public:
  explicit TableReplaceOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &num_tables_));
    OP_REQUIRES_OK(construction, construction->GetAttr("trained", &trained_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TablePtr> tables;
    OP_REQUIRES_OK(context, FindTables(context, num_tables_, &tables));
    for (int i = 0; i < num_tables_; ++i) {
      OP_REQUIRES_OK(context,
                     Check(*tables[i], Keys(context, i), Rows(context, i)));
    }
    TfExecutor executor(context);
    const ReplacedTables replaced = Replace(tables);
    for (int i = 0; i < num_tables_; ++i) {
      OP_REQUIRES_OK(context, Fill(*tables[i], Keys(context, i),
                                   Rows(context, i), &executor));
    }
  }

 private:
  const Tensor& Keys(OpKernelContext* context, int i) const {
    return context->input(num_tables_ + i);
  }
  const Tensor& Rows(OpKernelContext* context, int i) const {
    return context->input(2 * num_tables_ + i);
  }

  absl::Status Check(const TableResource& resource, const Tensor& keys,
                     const Tensor& rows) const {
    const EmbeddingTable& table = *resource.table();
    if (trained_) {
      TF_RETURN_IF_ERROR(CheckTrainable(resource));
      if (rows.dtype() != tensorflow::DT_FLOAT) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Trained rows must be float, in table '", resource.name(), "'"));
      }
    } else {
      TF_RETURN_IF_ERROR(CheckValueDtype(resource, rows.dtype()));
    }
    TF_RETURN_IF_ERROR(CheckKeyDtype(resource, keys.dtype()));
    const int64_t width = trained_ ? table.trained_width() : table.dim();
    TF_RETURN_IF_ERROR(CheckRows(resource, keys, width, rows, "rows"));
    return CheckBound(resource, keys);
  }

  // Once the table is cleared it is too late.
  absl::Status CheckBound(const TableResource& resource,
                          const Tensor& keys) const {
    const int64_t bound = resource.table()->max_size();
    if (bound == 0 || keys.NumElements() <= bound) return absl::OkStatus();
    int64_t distinct = 0;
    if (keys.dtype() == tensorflow::DT_STRING) {
      distinct = CountDistinct<tensorflow::tstring, absl::string_view>(keys);
    } else if (keys.dtype() == tensorflow::DT_INT32) {
      distinct = CountDistinct<int32_t, int32_t>(keys);
    } else {
      distinct = CountDistinct<int64_t, int64_t>(keys);
    }
    if (distinct <= bound) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "Table '", resource.name(), "' holds at most ", bound, " keys; got ",
        distinct, " distinct ones. Nothing was changed."));
  }

  template <typename Key, typename Seen>
  static int64_t CountDistinct(const Tensor& keys) {
    const auto all = keys.flat<Key>();
    return absl::flat_hash_set<Seen>(all.data(), all.data() + all.size())
        .size();
  }

  absl::Status Fill(const TableResource& resource, const Tensor& keys,
                    const Tensor& rows, Executor* executor) const {
    EmbeddingTable* const table = resource.table();
    table->Clear();
    KeyBatch batch;
    TF_RETURN_IF_ERROR(batch.Read(resource, keys, NewKeys::kAdd, executor));
    if (!trained_) return table->Upsert(batch.span(), rows.data(), executor);
    return table->WriteTrained(batch.span(), table->trained_width(),
                               rows.flat<float>().data(), /*add=*/false,
                               executor);
  }

  int num_tables_ = 0;
  bool trained_ = false;
};

TFEMBED_KERNEL(TableClear, TableClearOp);
TFEMBED_KERNEL(TableReplace, TableReplaceOp);

// Outputs: keys, what is read beside them, and how many chunks there are.
class ChunkOp : public OpKernel {
 public:
  explicit ChunkOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("tensor_name", &tensor_name_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Read(context));
  }

 protected:
  virtual int64_t NumChunks(const TableReader& reader) const = 0;

  // REQUIRES: 0 <= chunk < NumChunks(*reader).
  virtual absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                                 const EmbeddingTable& table, Tensor* keys,
                                 Tensor* beside) const = 0;

 private:
  absl::Status Read(OpKernelContext* context) {
    TablePtr table;
    TF_RETURN_IF_ERROR(FindTable(context, 0, &table));
    tstring prefix;
    int64_t chunk = 0;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "prefix", &prefix));
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "chunk", &chunk));
    CheckpointFiles files(context->env(), prefix);
    TF_RETURN_IF_ERROR(files.status());
    TableReader reader(table->name(), tensor_name_, &files);
    TF_RETURN_IF_ERROR(reader.Open(*table->table()));
    const int64_t num_chunks = NumChunks(reader);
    if (chunk < 0 || chunk >= num_chunks) {
      return absl::OutOfRangeError(
          absl::StrCat("`chunk` must be in [0, ", num_chunks, "); got ", chunk,
                       " for table '", table->name(), "'."));
    }
    Tensor keys, beside;
    TF_RETURN_IF_ERROR(
        ReadChunk(&reader, chunk, *table->table(), &keys, &beside));
    const tensorflow::DataType wanted = context->expected_output_dtype(0);
    if (keys.dtype() != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("The saved keys of table '", table->name(), "' are ",
                       tensorflow::DataTypeString(keys.dtype()), "; got Tkey ",
                       tensorflow::DataTypeString(wanted), "."));
    }
    context->set_output(0, keys);
    context->set_output(1, beside);
    Tensor* count;
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &count));
    count->scalar<int64_t>()() = num_chunks;
    return absl::OkStatus();
  }

  std::string tensor_name_;
};

class TableReadChunkOp : public ChunkOp {
 public:
  explicit TableReadChunkOp(OpKernelConstruction* construction)
      : ChunkOp(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("load_slots", &load_slots_));
  }

 protected:
  int64_t NumChunks(const TableReader& reader) const override {
    return reader.num_chunks();
  }
  absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                         const EmbeddingTable& table, Tensor* keys,
                         Tensor* rows) const override {
    return reader->ReadChunk(chunk, table, load_slots_, keys, rows);
  }

 private:
  bool load_slots_;
};

class TableReadWaitingOp : public ChunkOp {
 public:
  using ChunkOp::ChunkOp;

 protected:
  int64_t NumChunks(const TableReader& reader) const override {
    return reader.num_waiting_chunks();
  }
  absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                         const EmbeddingTable& /*table*/, Tensor* keys,
                         Tensor* seen) const override {
    return reader->ReadWaiting(chunk, keys, seen);
  }
};

TFEMBED_KERNEL(TableReadChunk, TableReadChunkOp);
TFEMBED_KERNEL(TableReadWaiting, TableReadWaitingOp);

}  // namespace

}  // namespace tfembed
