// Kernels that stream tables into checkpoints and back.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/support/memory_promise.h"
#include "cc/kernels/checkpoint_choice.h"
#include "cc/kernels/checkpoint_files.h"
#include "cc/kernels/checkpoint_meeting.h"
#include "cc/kernels/checkpoint_repeats.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/table_layout.h"
#include "cc/kernels/table_resource.h"
#include "cc/kernels/table_restore.h"
#include "cc/kernels/table_writer.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {
namespace {

using ::tensorflow::Env;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// One logical table: its name in the checkpoint, its shards in this process,
// and which of how many these are.
struct ShardedTable {
  std::string tensor_name;
  std::vector<TablePtr> shards;
  std::vector<int64_t> shard_numbers;
  int64_t all_shards = 0;
};

struct TableAttributes {
  std::vector<std::string> tensor_names;
  std::vector<int64_t> shard_counts;
  // Of each handle, and of each table; empty where all shards are here.
  std::vector<int64_t> shard_numbers, all_shards;

  // Eager calls run no shape function, so the lists are checked here as well.
  // `least` is that of the shards of a table.
  absl::Status Read(OpKernelConstruction* construction, int64_t least) {
    TF_RETURN_IF_ERROR(construction->GetAttr("tensor_names", &tensor_names));
    TF_RETURN_IF_ERROR(construction->GetAttr("shard_counts", &shard_counts));
    TF_RETURN_IF_ERROR(construction->GetAttr("shard_numbers", &shard_numbers));
    TF_RETURN_IF_ERROR(construction->GetAttr("all_shards", &all_shards));
    int64_t handles = 0;
    TF_RETURN_IF_ERROR(construction->GetAttr("N", &handles));
    TF_RETURN_IF_ERROR(CheckNumbers(handles));
    bool fits = shard_counts.size() == tensor_names.size();
    for (int64_t count : shard_counts) {
      fits = fits && least <= count && count <= handles;
      if (fits) handles -= count;
    }
    if (fits && handles == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "`shard_counts` must tell for each of the ", tensor_names.size(),
        " tables how many of the handles are its own, at least one, and name "
        "them all; got [",
        absl::StrJoin(shard_counts, ", "), "]."));
  }

  // One flag a table.
  absl::Status ReadFlags(OpKernelConstruction* construction, const char* name,
                         std::vector<bool>* flags) const {
    TF_RETURN_IF_ERROR(construction->GetAttr(name, flags));
    if (flags->size() == tensor_names.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must have one entry for each of the ",
                     tensor_names.size(), " tables; got ", flags->size(), "."));
  }

  absl::Status Find(OpKernelContext* context,
                    std::vector<ShardedTable>* tables) const {
    int input = 0;
    for (size_t t = 0; t < tensor_names.size(); ++t) {
      ShardedTable table = {tensor_names[t], {}, {}, shard_counts[t]};
      if (!all_shards.empty()) table.all_shards = all_shards[t];
      for (int64_t s = 0; s < shard_counts[t]; ++s, ++input) {
        table.shards.emplace_back();
        TF_RETURN_IF_ERROR(FindTable(context, input, &table.shards.back()));
        table.shard_numbers.push_back(
            all_shards.empty() ? s : shard_numbers[input]);
      }
      tables->push_back(std::move(table));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckNumbers(int64_t handles) const {
    const int64_t most =
        all_shards.empty()
            ? 0
            : *std::max_element(all_shards.begin(), all_shards.end());
    bool fits = all_shards.empty() || all_shards.size() == tensor_names.size();
    fits = fits && static_cast<int64_t>(shard_numbers.size()) ==
                       (all_shards.empty() ? 0 : handles);
    for (int64_t number : shard_numbers) {
      fits = fits && 0 <= number && number < most;
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "`shard_numbers` and `all_shards` must tell of each handle which shard "
        "of its table it is, and of each table how many there are, or be "
        "empty; got [",
        absl::StrJoin(shard_numbers, ", "), "] and [",
        absl::StrJoin(all_shards, ", "), "]."));
  }
};

absl::Status ReadPrefix(OpKernelContext* context, int input, tstring* prefix) {
  return ReadScalar(context, input, "prefix", prefix);
}

// The names under which a file is written until it is whole.
std::vector<std::string> UnfinishedFiles(Env* env, const std::string& file) {
  std::vector<std::string> paths;
  env->GetMatchingPaths(absl::StrCat(file, ".tempstate*"), &paths)
      .IgnoreError();
  return paths;
}

// Removes the files that failed or killed saves of this prefix have left.
void RemoveLeftovers(Env* env, const std::string& prefix) {
  for (const std::string& file : {tensorflow::DataFilename(prefix, 0, 1),
                                  tensorflow::MetaFilename(prefix)}) {
    for (const std::string& path : UnfinishedFiles(env, file)) {
      env->DeleteFile(path).IgnoreError();
    }
  }
}

// Where other processes save with this one it waits for them on a thread of its
// own: no kernel blocks one of a pool.
class TableSaveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit TableSaveOp(OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("owners", &owners_));
    // An owner may have no shard of a table that others have.
    OP_REQUIRES_OK(construction,
                   attributes_.Read(construction, owners_.empty() ? 1 : 0));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("with_slots", &with_slots_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner", &owner_));
    OP_REQUIRES_OK(construction, construction->GetAttr("token", &token_));
    OP_REQUIRES(
        construction,
        owners_.empty() ||
            (0 <= owner_ && owner_ < static_cast<int64_t>(owners_.size())),
        absl::InvalidArgumentError(
            absl::StrCat("`owner` must be one of the ", owners_.size(),
                         " `owners`; got ", owner_, ".")));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    if (owners_.size() < 2) {
      End(context, done);
      return;
    }
    try {
      tensorflow::Env::Default()->SchedClosure(
          [this, context, done] { End(context, done); });
      return;
    } catch (const std::bad_alloc&) {
      context->SetStatus(NoMemoryFor(*this));
    } catch (const std::system_error& error) {  // There are no more threads.
      context->SetStatus(absl::ResourceExhaustedError(absl::StrCat(
          "The system refused a thread to save tables: ", error.what(), ".")));
    }
    done();
  }

 private:
  void End(OpKernelContext* context, const DoneCallback& done) {
    try {
      const absl::Status status = Save(context);
      if (!status.ok()) context->SetStatus(status);
    } catch (const std::bad_alloc&) {
      context->SetStatus(NoMemoryFor(*this));
    }
    done();  // Not within the try: it may run other ops.
  }

  absl::Status Save(OpKernelContext* context) const {
    std::vector<ShardedTable> tables;
    TF_RETURN_IF_ERROR(attributes_.Find(context, &tables));
    tstring prefix;
    TF_RETURN_IF_ERROR(ReadPrefix(context, context->num_inputs() - 1, &prefix));
    if (owners_.empty()) return SaveAs(prefix, tables, nullptr, context);
    CheckpointMeeting meeting(context->env(), prefix, token_, owners_, owner_,
                              context->cancellation_manager());
    TF_RETURN_IF_ERROR(meeting.Enter());
    const absl::Status status =
        SaveAs(absl::StrCat(prefix, "_", owner_), tables, &meeting, context);
    if (!status.ok()) meeting.Fail(status);
    return status;
  }

  absl::Status SaveAs(const std::string& prefix,
                      const std::vector<ShardedTable>& tables,
                      CheckpointMeeting* meeting,
                      OpKernelContext* context) const {
    RemoveLeftovers(context->env(), prefix);
    tensorflow::BundleWriter writer(context->env(), prefix);
    absl::Status status = writer.status();
    const std::vector<std::string> unfinished =
        UnfinishedFiles(context->env(), tensorflow::DataFilename(prefix, 0, 1));
    WriteBack write_back(unfinished.empty() ? "" : unfinished[0]);
    TfExecutor executor(context);
    bool wrote = false;
    for (const ShardedTable& table : tables) {
      if (!status.ok()) break;
      status = Write(table, meeting, &executor, &writer, &write_back, &wrote);
    }
    // TensorFlow merges no part without a tensor.
    if (status.ok() && !wrote) {
      status = writer.Add(PartTensor(tables[0].tensor_name, owner_),
                          Tensor(int64_t{0}));
    }
    // Also after an error: it closes and removes the file, if it is not that
    // it cannot be moved.
    status.Update(writer.Finish());
    if (!status.ok()) RemoveLeftovers(context->env(), prefix);
    return status;
  }

  absl::Status Write(const ShardedTable& table, CheckpointMeeting* meeting,
                     Executor* executor, tensorflow::BundleWriter* writer,
                     WriteBack* write_back, bool* wrote) const {
    std::vector<const EmbeddingTable*> shards;
    for (const TablePtr& shard : table.shards) shards.push_back(shard->table());
    const std::string name =
        shards.empty() ? table.tensor_name : table.shards[0]->name();
    const absl::Status status =
        WriteTable({shards, name, table.tensor_name, with_slots_,
                    table.shard_numbers, table.all_shards, meeting},
                   executor, writer, write_back, wrote);
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("Table '", name, "' cannot be saved: ", status.message()));
  }

  TableAttributes attributes_;
  bool with_slots_ = true;
  std::vector<std::string> owners_;
  int64_t owner_ = 0;
  std::string token_;
};

class TableRestoreOp : public OpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction, 1));
    for (auto [name, flags] : {std::pair<const char*, std::vector<bool>*>(
                                   "keep_seeds", &keep_seeds_),
                               {"deal_rows", &deal_rows_},
                               {"load_slots", &load_slots_}}) {
      OP_REQUIRES_OK(construction,
                     attributes_.ReadFlags(construction, name, flags));
    }
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("only_check", &only_check_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<ShardedTable> tables;
    OP_REQUIRES_OK(context, attributes_.Find(context, &tables));
    tstring prefix;
    OP_REQUIRES_OK(context,
                   ReadPrefix(context, context->num_inputs() - 1, &prefix));
    CheckpointFiles files(context->env(), prefix);
    OP_REQUIRES_OK(context, files.status());
    std::deque<TableRestore> restores;
    TfExecutor executor(context);
    for (size_t t = 0; t < tables.size(); ++t) {
      restores.emplace_back(OptionsOf(tables[t], t), &files);
      OP_REQUIRES_OK(context, restores.back().Check(&executor));
    }
    int64_t bytes = 0, most = 0;  // At the end of each table.
    for (const TableRestore& restore : restores) {
      bytes += restore.MoreBytes();
      most = std::max(most, bytes + restore.BufferBytes());
    }
    OP_REQUIRES_OK(context, CheckMemory(most));
    Tensor* layouts;
    OP_REQUIRES_OK(
        context,
        context->allocate_output(
            0, TensorShape({static_cast<int64_t>(tables.size())}), &layouts));
    for (size_t t = 0; t < restores.size(); ++t) {
      if (!only_check_) OP_REQUIRES_OK(context, restores[t].Replace(&executor));
      layouts->flat<tstring>()(t) = restores[t].layout().ToText();
    }
  }

 private:
  TableRestore::Options OptionsOf(const ShardedTable& table, size_t t) const {
    TableRestore::Options options;
    options.table_name = table.shards[0]->name();
    options.tensor_name = table.tensor_name;
    for (const TablePtr& shard : table.shards) {
      options.shards.push_back(shard->table());
    }
    options.shard_numbers = table.shard_numbers;
    options.all_shards = table.all_shards;
    options.keep_seed = keep_seeds_[t];
    options.deal_rows = deal_rows_[t];
    options.load_slots = load_slots_[t];
    return options;
  }

  TableAttributes attributes_;
  std::vector<bool> keep_seeds_;
  std::vector<bool> deal_rows_;
  std::vector<bool> load_slots_;
  bool only_check_ = false;
};

class TableChooseOp : public OpKernel {
 public:
  explicit TableChooseOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("tensor_name", &tensor_name_));
  }

  void Compute(OpKernelContext* context) override {
    const int num_tables = context->num_inputs() - 2;
    std::vector<TablePtr> owners(num_tables);
    std::vector<EmbeddingTable*> shards;
    for (int i = 0; i < num_tables; ++i) {
      OP_REQUIRES_OK(context, FindTable(context, i, &owners[i]));
      shards.push_back(owners[i]->table());
    }
    tstring prefix;
    OP_REQUIRES_OK(context, ReadPrefix(context, num_tables, &prefix));
    CheckpointFiles files(context->env(), prefix);
    OP_REQUIRES_OK(context, files.status());
    TableReader reader(owners[0]->name(), tensor_name_, &files);
    OP_REQUIRES_OK(context, reader.Open(*shards[0]));
    const Tensor& numbers = context->input(num_tables + 1);
    const auto counts = Count(numbers, num_tables, reader.num_keys());
    OP_REQUIRES_OK(context, counts.status());
    const auto shard_of = numbers.flat<int32_t>();
    const auto stays = ChooseRows(
        shards, *counts,
        [&](const Tensor&, int64_t, int64_t row) { return shard_of(row); },
        &reader);
    OP_REQUIRES_OK(context, stays.status());
    OP_REQUIRES_OK(context, Write(context, *stays, reader));
  }

 private:
  // The rows of each shard.
  static absl::StatusOr<std::vector<int64_t>> Count(const Tensor& numbers,
                                                    int num_tables,
                                                    int64_t num_rows) {
    if (numbers.shape() != TensorShape({num_rows})) {
      return absl::InvalidArgumentError(
          absl::StrCat("`shards` must be [", num_rows,
                       "], one number for each saved row; got shape ",
                       numbers.shape().DebugString(), "."));
    }
    std::vector<int64_t> counts(num_tables);
    const auto all = numbers.flat<int32_t>();
    for (int64_t i = 0; i < all.size(); ++i) {
      if (all(i) < -1 || all(i) >= num_tables) {
        return absl::InvalidArgumentError(
            absl::StrCat("`shards` must be in [0, ", num_tables,
                         "), or -1; got ", all(i), "."));
      }
      if (all(i) >= 0) ++counts[all(i)];
    }
    return counts;
  }

  static absl::Status Write(OpKernelContext* context,
                            const std::vector<bool>& stays,
                            const TableReader& reader) {
    const int64_t n = reader.num_keys(), chunks = reader.num_chunks();
    Tensor *flags, *begins;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n}), &flags));
    TF_RETURN_IF_ERROR(
        context->allocate_output(1, TensorShape({chunks + 1}), &begins));
    for (int64_t i = 0; i < n; ++i) {
      flags->flat<bool>()(i) = stays.empty() || stays[i];
    }
    for (int64_t c = 0; c <= chunks; ++c) {
      begins->flat<int64_t>()(c) = reader.first_row(c);
    }
    return absl::OkStatus();
  }

  std::string tensor_name_;
};

class CheckpointReadOp : public OpKernel {
 public:
  explicit CheckpointReadOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("tensor_names", &names_));
    OP_REQUIRES(construction,
                names_.size() == static_cast<size_t>(num_outputs()),
                absl::InvalidArgumentError(absl::StrCat(
                    "`tensor_names` must have one entry for each of the ",
                    num_outputs(), " dtypes; got ", names_.size(), ".")));
  }

  void Compute(OpKernelContext* context) override {
    tstring prefix;
    OP_REQUIRES_OK(context, ReadPrefix(context, 0, &prefix));
    CheckpointFiles files(context->env(), prefix);
    // A checkpoint of TensorFlow 1's first format has no index.
    const bool has_index = !absl::IsNotFound(files.status());
    if (has_index) OP_REQUIRES_OK(context, files.status());
    int64_t num_strings = 0;
    for (int i = 0; i < num_outputs(); ++i) {
      const bool has = has_index && files.Contains(names_[i]);
      OP_REQUIRES_OK(context,
                     Read(context, i, has ? &files : nullptr, &num_strings));
    }
  }

 private:
  // Adds the strings of output i to those of the ones before.
  absl::Status Read(OpKernelContext* context, int i, CheckpointFiles* files,
                    int64_t* num_strings) const {
    Tensor* tensor;
    if (files == nullptr) {
      return context->allocate_output(i, TensorShape({0}), &tensor);
    }
    const absl::StatusOr<SavedTensor> saved = files->Find(names_[i]);
    if (!saved.ok()) return saved.status();
    if (saved->dtype != output_type(i)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Tensor '", names_[i], "' of the checkpoint is ",
          tensorflow::DataTypeString(saved->dtype), "; the program takes ",
          tensorflow::DataTypeString(output_type(i)), "."));
    }
    absl::Status status;
    if (saved->dtype == tensorflow::DT_STRING) {
      *num_strings += saved->shape.num_elements();
      status = files->CheckMemoryOf(*num_strings);
    }
    if (status.ok()) {
      TF_RETURN_IF_ERROR(context->allocate_output(i, saved->shape, &tensor));
      status = files->Read(*saved, tensor);
    }
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("Tensor '", names_[i], "' of checkpoint '",
                     files->prefix(), "': ", status.message(), "."));
  }

  std::vector<std::string> names_;
};

absl::Status CheckEntry(CheckpointFiles* files, int64_t entry, bool checksums,
                        SavedTensor* saved) {
  absl::StatusOr<SavedTensor> found = files->Check(entry);
  // An error about the index says so itself.
  if (!found.ok() && IsDamage(found.status())) return found.status();
  absl::Status status = found.status();
  if (found.ok()) *saved = *std::move(found);
  if (status.ok() && checksums) status = files->CompareChecksum(entry);
  if (status.ok()) return status;
  const std::string file = absl::StrCat("'", files->PathOf(entry), "'");
  const std::string what =
      absl::StrCat("tensor '", Printable(files->index().name(entry)),
                   "': ", status.message());
  if (!IsDamage(status)) {
    return absl::Status(status.code(),
                        absl::StrCat(file, " cannot be read: ", what, "."));
  }
  return absl::Status(
      status.code(), absl::StrCat(file, " is damaged or cut off: ", what, "."));
}

absl::Status NoName(const std::string& prefix, absl::string_view name) {
  return absl::DataLossError(
      absl::StrCat("'", tensorflow::MetaFilename(prefix),
                   "' is damaged or cut off: the name '", Printable(name),
                   "' is neither text nor that of a slice."));
}

struct NamedDtype {
  std::string name;
  tensorflow::DataType dtype;
};

// Checks the checkpoint `prefix`, whatever saved it: all that its index says,
// and that all of it is in the files. With `checksums` it reads every byte and
// compares them; without, little more than the index. Takes a few megabytes of
// memory, and a few times the index. NotFound: a file is missing. DataLoss: a
// file is damaged or cut off. Both name the file and, where it is known, the
// tensor.
absl::Status CheckCheckpoint(Env* env, const std::string& prefix,
                             bool checksums, std::vector<NamedDtype>* tensors) {
  CheckpointFiles files(env, prefix);
  TF_RETURN_IF_ERROR(files.status());
  const int64_t n = files.index().size();
  std::vector<bool> has_name(n), is_part(n);
  std::vector<tensorflow::DataType> dtypes(n);
  for (int64_t i = 0; i < n; ++i) {
    SavedTensor saved;
    TF_RETURN_IF_ERROR(CheckEntry(&files, i, checksums, &saved));
    dtypes[i] = saved.dtype;
    for (const SavedTensor::Part& part : saved.parts) {
      if (part.entry != i) is_part[part.entry] = has_name[part.entry] = true;
    }
    // Slices without elements are no parts.
    if (saved.bytes == 0 || IsUtf8(files.index().name(i))) has_name[i] = true;
  }
  for (int64_t i = 0; i < n; ++i) {
    const absl::string_view name = files.index().name(i);
    if (!has_name[i]) return NoName(prefix, name);
    if (!is_part[i] && IsUtf8(name)) {
      tensors->push_back({std::string(name), dtypes[i]});
    }
  }
  return absl::OkStatus();
}

class CheckpointCheckOp : public OpKernel {
 public:
  explicit CheckpointCheckOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("checksums", &checksums_));
  }

  void Compute(OpKernelContext* context) override {
    tstring prefix;
    OP_REQUIRES_OK(context, ReadPrefix(context, 0, &prefix));
    std::vector<NamedDtype> tensors;
    OP_REQUIRES_OK(
        context, CheckCheckpoint(context->env(), prefix, checksums_, &tensors));
    const TensorShape shape({static_cast<int64_t>(tensors.size())});
    Tensor *names, *dtypes;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &names));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &dtypes));
    for (size_t i = 0; i < tensors.size(); ++i) {
      names->vec<tstring>()(i) = tensors[i].name;
      dtypes->vec<int32_t>()(i) = tensors[i].dtype;
    }
  }

 private:
  bool checksums_ = true;
};

class CheckDistinctOp : public OpKernel {
 public:
  explicit CheckDistinctOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("table_name", &table_name_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    const auto twice = FindRepeatedKey(
        keys.NumElements(), [&](bool /*again*/, const TakeKeys& take) {
          take(keys);
          return absl::OkStatus();
        });
    OP_REQUIRES_OK(context, twice.status());
    if (!twice->has_value()) return;
    const absl::Status status = HasTwice(**twice);
    context->CtxFailure(absl::Status(
        status.code(), absl::StrCat("Table '", table_name_,
                                    "' cannot be restored from a checkpoint: ",
                                    status.message(), ".")));
  }

 private:
  std::string table_name_;
};

TFEMBED_ASYNC_KERNEL(TableSave, TableSaveOp);
TFEMBED_KERNEL(TableRestore, TableRestoreOp);
TFEMBED_KERNEL(TableChoose, TableChooseOp);
TFEMBED_KERNEL(CheckpointRead, CheckpointReadOp);
TFEMBED_KERNEL(CheckpointCheck, CheckpointCheckOp);
TFEMBED_KERNEL(CheckDistinct, CheckDistinctOp);

}  // namespace
}  // namespace tfembed
