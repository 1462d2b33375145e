#include "cc/kernels/row_file_owners.h"

#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cc/core/support/mutex.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/refcount.h"

namespace tfembed {
namespace {

using TableWeakPtr = ::tensorflow::core::WeakPtr<TableResource>;

// A table that may be gone.
struct KnownTable {
  explicit KnownTable(const RowFileUser& user)
      : id(user.id), shard(user.shard) {}

  bool lives() const { return shard.GetNewRef() != nullptr; }

  std::string id;
  TableWeakPtr shard;
};

// The tables that wrote or loaded the rows of a stem, in one save.
struct Owners {
  std::optional<KnownTable> writer;
  std::map<std::string, KnownTable> readers;  // By id.

  bool Has(const std::string& id) const {
    return (writer.has_value() && writer->id == id) || readers.count(id) > 0;
  }
};

// The row files that this process wrote or loaded, with their owners.
class Owned {
 public:
  static Owned& Here() {
    static Owned* const owned = new Owned;
    return *owned;
  }

  // Has `id` write the files behind `path`, once its other saves of them have
  // ended; false where another table writes them.
  bool Begin(const std::string& path, const std::string& id) {
    MutexLock lock(&mu_);
    while (true) {
      const auto [writer, is_free] = writers_.try_emplace(path, id);
      if (is_free) return true;
      if (writer->second != id) return false;
      ended_.Wait(&mu_);
    }
  }

  void End(const std::string& path) {
    MutexLock lock(&mu_);
    writers_.erase(path);
    ended_.NotifyAll();
  }

  // Whether a table that lives wrote `stem` in `save`, and `id` has not loaded
  // it since.
  bool IsOfAnother(uint64_t save, const std::string& stem,
                   const std::string& id) {
    MutexLock lock(&mu_);
    const auto found = owners_.find({save, stem});
    if (found == owners_.end() || found->second.Has(id)) return false;
    return found->second.writer.has_value() && found->second.writer->lives();
  }

  // Whether `id` has written or loaded `stem` of `save`.
  bool Knows(uint64_t save, const std::string& stem, const std::string& id) {
    MutexLock lock(&mu_);
    const auto found = owners_.find({save, stem});
    return found != owners_.end() && found->second.Has(id);
  }

  void NoteSaved(uint64_t save, const std::string& stem,
                 const RowFileUser& user) {
    MutexLock lock(&mu_);
    DropGone();
    Owners owners;
    owners.writer.emplace(user);
    owners_.insert_or_assign({save, stem}, std::move(owners));
  }

  // The rows of `stem`, as they are, belong to another save now.
  void NoteMoved(uint64_t from, uint64_t to, const std::string& stem) {
    MutexLock lock(&mu_);
    auto node = owners_.extract({from, stem});
    if (node.empty()) return;
    node.key().first = to;
    owners_.insert(std::move(node));
  }

  void NoteLoaded(uint64_t save, const std::string& stem,
                  const RowFileUser& user) {
    MutexLock lock(&mu_);
    DropGone();
    owners_[{save, stem}].readers.insert_or_assign(user.id, KnownTable(user));
  }

 private:
  // So that what is remembered does not grow with tables that come and go.
  void DropGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto at = owners_.begin(); at != owners_.end();) {
      Owners& owners = at->second;
      if (owners.writer.has_value() && !owners.writer->lives()) {
        owners.writer.reset();
      }
      for (auto one = owners.readers.begin(); one != owners.readers.end();) {
        one = one->second.lives() ? std::next(one) : owners.readers.erase(one);
      }
      const bool is_known =
          owners.writer.has_value() || !owners.readers.empty();
      at = is_known ? std::next(at) : owners_.erase(at);
    }
  }

  Mutex mu_;
  Condition ended_;  // A writer has gone.
  // The id of the table that writes, by path.
  std::map<std::string, std::string> writers_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<uint64_t, std::string>, Owners> owners_
      ABSL_GUARDED_BY(mu_);
};

// One spelling of a path, for whoever gave it.
std::string PathOf(const FileFolder& folder, const std::string& set) {
  const std::string path = tensorflow::io::CleanPath(folder.path());
  if (!absl::StrContains(path, "://")) {
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      std::string found = absl::StrCat(real, "/", set);
      std::free(real);
      return found;
    }
  }
  return tensorflow::io::JoinPath(path, set);
}

constexpr char kWayOut[] =
    "Give each table a name of its own, or save into another folder or under "
    "another name, by `file_name_list`.";

}  // namespace

absl::Status RowFileClaim::Take(absl::Span<const std::string> stems) {
  TF_RETURN_IF_ERROR(folder_.env()->RecursivelyCreateDir(folder_.path()));
  stems_.assign(stems.begin(), stems.end());
  // In the order of their names, so that no two saves wait for each other.
  std::map<std::string, std::string> stem_of;
  for (const std::string& stem : stems) stem_of.emplace(SetOf(stem), stem);
  for (const auto& [set, stem] : stem_of) {
    const std::string path = PathOf(folder_, set);
    if (!Owned::Here().Begin(path, user_.id)) {
      return absl::AlreadyExistsError(absl::StrCat(
          "another table is just writing the files '", stem, "'. ", kWayOut));
    }
    sets_[set].path = path;
  }
  for (const std::string& stem : stems) {
    const std::string set = SetOf(stem);
    const auto manifest = folder_.ReadManifest(set);
    if (!manifest.ok()) return manifest.status();
    if (!manifest->has_value()) continue;
    sets_[set].old_save = (*manifest)->save_id;
    TF_RETURN_IF_ERROR(Check(stem, **manifest));
  }
  return absl::OkStatus();
}

absl::Status RowFileClaim::Check(const std::string& stem,
                                 const Manifest& manifest) const {
  if (manifest.files.count(KeysFile(stem)) == 0) return absl::OkStatus();
  const uint64_t save = manifest.save_id;
  if (Owned::Here().IsOfAnother(save, stem, user_.id)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "the files '", stem, "' hold the rows of another table, named '",
        manifest.table,
        "', which this program still has and whose rows this "
        "one has not loaded. ",
        kWayOut));
  }
  if (manifest.table.empty() || manifest.table == user_.name) {
    return absl::OkStatus();
  }
  if (Owned::Here().Knows(save, stem, user_.id)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("the files '", stem, "' hold the rows of a table named '",
                   manifest.table, "'. ", kWayOut));
}

RowFileClaim::~RowFileClaim() {
  for (const auto& [set, claimed] : sets_) {
    // The manifest says whether the save counts, also after an error.
    const auto manifest = folder_.ReadManifest(set);
    if (manifest.ok() && manifest->has_value()) {
      NoteSaved(set, claimed.old_save, **manifest);
    }
    Owned::Here().End(claimed.path);
  }
}

void RowFileClaim::NoteSaved(const std::string& set, uint64_t old_save,
                             const Manifest& manifest) const {
  if (manifest.save_id == old_save) return;
  for (const auto& [file, entry] : manifest.files) {
    absl::string_view stem = file;
    if (!absl::ConsumeSuffix(&stem, KeysFile(""))) continue;
    Owned::Here().NoteMoved(old_save, manifest.save_id, std::string(stem));
  }
  for (const std::string& stem : stems_) {
    if (SetOf(stem) != set) continue;
    Owned::Here().NoteSaved(manifest.save_id, stem, user_);
  }
}

void NoteLoaded(const FileFolder& folder, const std::string& stem,
                const RowFileUser& user) {
  const auto manifest = folder.ReadManifest(SetOf(stem));
  if (!manifest.ok() || !manifest->has_value()) return;
  Owned::Here().NoteLoaded((*manifest)->save_id, stem, user);
}

}  // namespace tfembed
