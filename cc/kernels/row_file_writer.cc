#include "cc/kernels/row_file_writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/support/row_copy.h"
#include "cc/kernels/checkpoint_index.h"
#include "cc/kernels/disk_file.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/row_file_reader.h"
#include "cc/kernels/table_writer.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/inputbuffer.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/random.h"

namespace tfembed {
namespace {

using ::tensorflow::Env;

constexpr int64_t kCopyBytes = 256 << 10;

RowFormat FormatOf(const EmbeddingTable& table) {
  return {KeyDtype(table.key_kind()), ValueDtype(table.type()), table.dim()};
}

template <typename T>
absl::string_view BytesOf(absl::Span<const T> keys) {
  return {reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(T)};
}

// One pair, under its temporary names.
class PairWriter {
 public:
  absl::Status Open(const FileFolder& folder, uint64_t save_id,
                    const std::string& stem) {
    TF_RETURN_IF_ERROR(
        keys_.Open(folder.env(), folder.PendingPath(save_id, KeysFile(stem))));
    return values_.Open(folder.env(),
                        folder.PendingPath(save_id, ValuesFile(stem)));
  }

  absl::Status CopyFrom(Env* env, const RowFilePair& pair) {
    TF_RETURN_IF_ERROR(keys_.AppendFile(env, pair.keys_path));
    return values_.AppendFile(env, pair.values_path);
  }

  // `strings` name the keys; null where they are numbers.
  absl::Status Write(const StringKeys* strings, const RowFormat& format,
                     const RowLayout& layout, absl::Span<const int64_t> keys,
                     const float* full_rows) {
    TF_RETURN_IF_ERROR(strings == nullptr ? WriteKeys(keys, format.key_dtype)
                                          : WriteStrings(*strings, keys));
    return WriteValues(full_rows, keys.size(), layout);
  }

  absl::Status Close() {
    TF_RETURN_IF_ERROR(keys_.Close());
    return values_.Close();
  }

  const FileEntry& keys() const { return keys_.entry(); }
  const FileEntry& values() const { return values_.entry(); }

 private:
  absl::Status WriteKeys(absl::Span<const int64_t> keys,
                         tensorflow::DataType dtype) {
    if (dtype == tensorflow::DT_INT64) return keys_.Append(BytesOf(keys));
    narrow_keys_.assign(keys.begin(), keys.end());
    return keys_.Append(BytesOf(absl::Span<const int32_t>(narrow_keys_)));
  }

  // Each its length, uint32, and its bytes.
  absl::Status WriteStrings(const StringKeys& strings,
                            absl::Span<const int64_t> keys) {
    std::vector<absl::string_view> names(keys.size());
    strings.Strings(keys, names.data());
    std::string bytes;
    for (absl::string_view name : names) {
      const auto length = static_cast<uint32_t>(name.size());
      absl::StrAppend(&bytes,
                      absl::string_view(reinterpret_cast<const char*>(&length),
                                        sizeof(length)),
                      name);
    }
    return keys_.Append(bytes);
  }

  absl::Status WriteValues(const float* full_rows, int64_t n,
                           const RowLayout& layout) {
    const int64_t bytes = layout.value_bytes();
    if (bytes == layout.width() * RowLayout::kWordBytes) {
      return values_.Append({reinterpret_cast<const char*>(full_rows),
                             static_cast<size_t>(n * bytes)});
    }
    buffer_.resize(n * bytes);
    for (int64_t i = 0; i < n; ++i) {
      CopyBytes(full_rows + i * layout.width(), buffer_.data() + i * bytes,
                bytes);
    }
    return values_.Append({buffer_.data(), buffer_.size()});
  }

  CheckedFile keys_, values_;
  std::vector<int32_t> narrow_keys_;
  std::vector<char> buffer_;
};

// One call of SaveRowFiles.
class Save {
 public:
  Save(Env* env, const RowFileSave& options, Executor* executor)
      : options_(options),
        executor_(executor),
        folder_(env, options.folder),
        format_(FormatOf(*options.tables[0])),
        save_id_(tensorflow::random::New64()) {}

  absl::Status Run() {
    absl::Status status = Prepare();
    if (status.ok()) {
      status = WritePairs();
      if (status.ok()) status = CommitAll();
      if (!status.ok()) Abandon();
    }
    if (!status.ok()) return Explain("cannot be saved to", status);
    status = PublishAll();
    if (status.ok()) return status;
    return Explain("is saved, but may not be on the disk yet, in", status);
  }

 private:
  absl::Status Explain(absl::string_view what,
                       const absl::Status& status) const {
    return absl::Status(status.code(),
                        absl::StrCat("Table '", options_.name, "' ", what, " '",
                                     options_.folder, "': ", status.message()));
  }

  // Brings what an earlier save has left into order.
  absl::Status Prepare() {
    TF_RETURN_IF_ERROR(folder_.env()->RecursivelyCreateDir(folder_.path()));
    // Its own name, in a folder that may be nobody's to open.
    SyncToDisk(absl::StrCat(folder_.path(), "/..")).IgnoreError();
    for (const std::string& stem : options_.stems) {
      const std::string set = SetOf(stem);
      names_.insert({set, KeysFile(stem), ValuesFile(stem)});
      for (const std::string& file : {KeysFile(stem), ValuesFile(stem)}) {
        TF_RETURN_IF_ERROR(ReplaceableFile(folder_.PathOf(file)).status());
      }
      if (manifests_.count(set) > 0) continue;
      auto found = folder_.ReadManifest(set);
      if (!found.ok()) return found.status();
      Manifest& manifest = manifests_[set];
      old_manifests_[set] = *found;
      if (found->has_value()) {
        TF_RETURN_IF_ERROR(folder_.Publish(**found));
        if ((*found)->format == format_) manifest = **std::move(found);
      }
      manifest.save_id = save_id_;
      manifest.table = options_.name;
      manifest.format = format_;
    }
    folder_.RemoveLeftovers(names_);
    return options_.append ? FindOldPairs() : absl::OkStatus();
  }

  absl::Status FindOldPairs() {
    for (const std::string& stem : options_.stems) {
      const auto keys = folder_.Exists(folder_.PathOf(KeysFile(stem)));
      if (!keys.ok()) return keys.status();
      const auto values = folder_.Exists(folder_.PathOf(ValuesFile(stem)));
      if (!values.ok()) return values.status();
      if (!*keys && !*values) continue;
      auto pair = CheckRowFiles(folder_, stem, format_);
      if (!pair.ok()) return pair.status();
      old_pairs_[stem] = *std::move(pair);
    }
    return absl::OkStatus();
  }

  absl::Status WritePairs() {
    // The locks come first: what is written is of their moment.
    const KeysStay keys_stay(options_.tables);
    const auto snapshots = FreezeAll(options_.tables);
    std::vector<PairWriter> pairs(snapshots.size());
    if (options_.deal_by_low_bits) {
      for (size_t i = 0; i < pairs.size(); ++i) {
        TF_RETURN_IF_ERROR(Begin(options_.stems[i], &pairs[i]));
      }
    }
    for (size_t i = 0; i < snapshots.size(); ++i) {
      if (options_.deal_by_low_bits) {
        TF_RETURN_IF_ERROR(DealShard(*snapshots[i], &pairs));
        continue;
      }
      TF_RETURN_IF_ERROR(Begin(options_.stems[i], &pairs[i]));
      TF_RETURN_IF_ERROR(
          WriteShard(*snapshots[i], options_.tables[i]->strings(), &pairs[i]));
      TF_RETURN_IF_ERROR(End(options_.stems[i], &pairs[i]));
    }
    if (!options_.deal_by_low_bits) return absl::OkStatus();
    for (size_t i = 0; i < pairs.size(); ++i) {
      TF_RETURN_IF_ERROR(End(options_.stems[i], &pairs[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Begin(const std::string& stem, PairWriter* pair) {
    TF_RETURN_IF_ERROR(pair->Open(folder_, save_id_, stem));
    const auto old = old_pairs_.find(stem);
    if (old == old_pairs_.end()) return absl::OkStatus();
    return pair->CopyFrom(folder_.env(), old->second);
  }

  absl::Status End(const std::string& stem, PairWriter* pair) {
    TF_RETURN_IF_ERROR(pair->Close());
    Manifest& manifest = manifests_[SetOf(stem)];
    manifest.files[KeysFile(stem)] = pair->keys();
    manifest.files[ValuesFile(stem)] = pair->values();
    return absl::OkStatus();
  }

  // Calls write(keys, full rows) for all rows of a shard, some at a time.
  template <typename Body>
  absl::Status VisitShard(const EmbeddingTable::Snapshot& rows,
                          const Body& write) const {
    ProgressLog progress(
        absl::StrCat("Saving table '", options_.name, "' to row files"),
        rows.size());
    return rows.Visit(
        std::min(options_.buffer_rows, ChunkRows(rows.layout().width())),
        [&](absl::Span<const int64_t> keys, const float* full_rows) {
          progress.Add(keys.size());
          return write(keys, full_rows);
        },
        executor_);
  }

  absl::Status WriteShard(const EmbeddingTable::Snapshot& rows,
                          const StringKeys* strings, PairWriter* pair) const {
    return VisitShard(
        rows, [&](absl::Span<const int64_t> keys, const float* full_rows) {
          return pair->Write(strings, format_, rows.layout(), keys, full_rows);
        });
  }

  absl::Status DealShard(const EmbeddingTable::Snapshot& rows,
                         std::vector<PairWriter>* pairs) const {
    const int64_t width = rows.layout().width();
    const auto num_pairs = static_cast<int64_t>(pairs->size());
    std::vector<int64_t> own_keys;
    std::vector<float> own_rows;
    return VisitShard(
        rows,
        [&](absl::Span<const int64_t> keys,
            const float* full_rows) -> absl::Status {
          for (int64_t p = 0; p < num_pairs; ++p) {
            own_keys.clear();
            own_rows.clear();
            for (size_t i = 0; i < keys.size(); ++i) {
              if ((keys[i] & 0x7fffffff) % num_pairs != p) continue;
              own_keys.push_back(keys[i]);
              own_rows.insert(own_rows.end(), full_rows + i * width,
                              full_rows + (i + 1) * width);
            }
            if (own_keys.empty()) continue;
            TF_RETURN_IF_ERROR((*pairs)[p].Write(
                nullptr, format_, rows.layout(), own_keys, own_rows.data()));
          }
          return absl::OkStatus();
        });
  }

  // The manifests of all sets or of none; a set is rarely not alone.
  absl::Status CommitAll() {
    for (const auto& [set, manifest] : manifests_) {
      TF_RETURN_IF_ERROR(folder_.WriteManifest(set, manifest));
    }
    // The names of the files come to the disk before the manifests that count
    // on them do.
    TF_RETURN_IF_ERROR(folder_.SyncNames());
    std::vector<std::string> committed;
    for (const auto& [set, manifest] : manifests_) {
      const absl::Status status = folder_.Commit(set, manifest);
      if (!status.ok()) return TakeBack(committed, status);
      committed.push_back(set);
    }
    return absl::OkStatus();
  }

  absl::Status TakeBack(const std::vector<std::string>& committed,
                        const absl::Status& error) const {
    std::string kept;
    for (const std::string& set : committed) {
      const absl::Status status = folder_.Restore(set, old_manifests_.at(set));
      if (status.ok()) continue;
      absl::StrAppend(&kept, " The files of '", set,
                      "' are those of this save already: ", status.message());
    }
    if (!kept.empty()) {
      return absl::Status(error.code(), absl::StrCat(error.message(), kept));
    }
    return error;
  }

  // Removes what was written, unless a manifest may count on it.
  void Abandon() const {
    for (const auto& [set, manifest] : manifests_) {
      const auto found = folder_.ReadManifest(set);
      if (!found.ok()) return;
      if (found->has_value() && (*found)->save_id == save_id_) return;
    }
    folder_.RemoveLeftovers(names_);
  }

  // After the commit, of which nothing is undone.
  absl::Status PublishAll() const {
    absl::Status status = folder_.SyncNames();
    for (const auto& [set, manifest] : manifests_) {
      status.Update(folder_.Publish(manifest));
    }
    return status;
  }

  const RowFileSave& options_;
  Executor* const executor_;
  const FileFolder folder_;
  const RowFormat format_;
  const uint64_t save_id_;
  std::set<std::string> names_;  // All files', for RemoveLeftovers.
  std::map<std::string, Manifest> manifests_;  // By set, as are these:
  std::map<std::string, std::optional<Manifest>> old_manifests_;
  std::map<std::string, RowFilePair> old_pairs_;  // By stem.
};

absl::Status CheckStems(const RowFileSave& save) {
  std::set<std::string> seen;
  for (const std::string& stem : save.stems) {
    const bool has_control_character =
        std::any_of(stem.begin(), stem.end(),
                    [](char c) { return absl::ascii_iscntrl(c); });
    if (stem.empty() || absl::StrContains(stem, '/') || has_control_character) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A file's name must not be empty and have no '/' and no control "
          "character; got '",
          Printable(stem), "'."));
    }
    if (!seen.insert(stem).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Each shard needs a file name of its own; got '", stem, "' twice."));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckedFile::Open(Env* env, const std::string& path) {
  path_ = path;
  TF_RETURN_IF_ERROR(env->NewWritableFile(path, &file_));
  write_back_.emplace(path);
  return absl::OkStatus();
}

absl::Status CheckedFile::Append(absl::string_view bytes) {
  entry_.bytes += bytes.size();
  entry_.checksum =
      tensorflow::crc32c::Extend(entry_.checksum, bytes.data(), bytes.size());
  const absl::Status status = file_->Append(bytes);
  write_back_->Add(bytes.size());
  return status;
}

absl::Status CheckedFile::AppendFile(Env* env, const std::string& path) {
  std::unique_ptr<tensorflow::RandomAccessFile> from;
  TF_RETURN_IF_ERROR(env->NewRandomAccessFile(path, &from));
  tensorflow::io::InputBuffer input(from.get(), kCopyBytes);
  std::vector<char> block(kCopyBytes);
  size_t read = block.size();
  while (read == block.size()) {
    const absl::Status status =
        input.ReadNBytes(block.size(), block.data(), &read);
    if (!status.ok() && !absl::IsOutOfRange(status)) return status;
    TF_RETURN_IF_ERROR(Append({block.data(), read}));
  }
  return absl::OkStatus();
}

absl::Status CheckedFile::Close() {
  write_back_.reset();
  TF_RETURN_IF_ERROR(file_->Close());
  return SyncToDisk(path_);
}

absl::Status SaveRowFiles(Env* env, const RowFileSave& save,
                          Executor* executor) {
  if (save.buffer_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`buffer_size` must be at least 1; got ", save.buffer_rows, "."));
  }
  if (save.deal_by_low_bits && save.tables[0]->key_kind() != KeyKind::kInt64) {
    return absl::InvalidArgumentError(
        "`deal_by_low_bits` is for keys of int64 alone.");
  }
  TF_RETURN_IF_ERROR(CheckStems(save));
  return Save(env, save, executor).Run();
}

}  // namespace tfembed
