#ifndef TFEMBED_KERNELS_FILE_SET_H_
#define TFEMBED_KERNELS_FILE_SET_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// Raw files of keys and values carry no header. A manifest beside them
// describes their content (docs/formats/row_files.md), and makes several files
// change at once:
//
//   1. write every file under a temporary name that has the save's id in it
//   2. rename the new manifest, with that id, over the old one: the commit
//   3. rename every file to its own name
//
// A reader that finds a manifest whose temporary files still exist reads these.
// So a process that is killed at any moment leaves the files of one save, the
// old or the new one. A temporary file whose id no manifest has is a leftover.

// The dtypes and the width of the rows in a pair of files.
struct RowFormat {
  tensorflow::DataType key_dtype = tensorflow::DT_INVALID;
  tensorflow::DataType value_dtype = tensorflow::DT_INVALID;
  int64_t dim = 0;

  bool operator==(const RowFormat& other) const {
    return key_dtype == other.key_dtype && value_dtype == other.value_dtype &&
           dim == other.dim;
  }
  bool operator!=(const RowFormat& other) const { return !(*this == other); }

  // As in "int64 keys, float rows of width 8".
  std::string DebugString() const;
};

struct FileEntry {
  int64_t bytes = 0;
  uint32_t checksum = 0;  // CRC-32C.
};

// The files that are committed together.
struct Manifest {
  // A longer file is no manifest: these are 20,000 shards in one process.
  static constexpr int64_t kMostBytes = 4 << 20;

  uint64_t save_id = 0;
  std::string table;  // The table's name; "" where it has none.
  RowFormat format;
  std::map<std::string, FileEntry> files;  // By name, without the folder.

  std::string ToText() const;

  // DataLoss: damaged. InvalidArgument: a later version.
  static absl::StatusOr<Manifest> Parse(absl::string_view text);
};

// The set of a pair: the shards of one table, "<name>_mht_<i>of<n>...", are one
// set; any other stem is a separate set.
std::string SetOf(absl::string_view stem);

// The two files of a stem.
std::string KeysFile(absl::string_view stem);
std::string ValuesFile(absl::string_view stem);

// A folder with row files. Thread-compatible.
class FileFolder {
 public:
  FileFolder(tensorflow::Env* env, std::string path)
      : env_(env), path_(std::move(path)) {}

  tensorflow::Env* env() const { return env_; }
  const std::string& path() const { return path_; }

  std::string PathOf(absl::string_view file) const;
  std::string PendingPath(uint64_t save_id, absl::string_view file) const;
  std::string ManifestPath(absl::string_view set) const;

  // nullopt: there is none, as beside the files of another program.
  absl::StatusOr<std::optional<Manifest>> ReadManifest(
      absl::string_view set) const;

  // Goes before step 2: puts the manifest on the disk, under its temporary
  // name. SyncNames puts the names of the manifest's files there.
  absl::Status WriteManifest(absl::string_view set,
                             const Manifest& manifest) const;
  absl::Status SyncNames() const;

  // Step 2. REQUIRES: WriteManifest and SyncNames succeeded.
  absl::Status Commit(absl::string_view set, const Manifest& manifest) const;

  // Undoes Commit: `manifest` counts again, or none. REQUIRES: nothing that the
  // commit counts on was published.
  absl::Status Restore(absl::string_view set,
                       const std::optional<Manifest>& manifest) const;

  // Step 3, as far as it has not been done, and on the disk.
  absl::Status Publish(const Manifest& manifest) const;

  // Where the content of `file` is now: under its temporary or its own name.
  absl::StatusOr<std::string> Locate(const Manifest& manifest,
                                     absl::string_view file) const;

  // Removes what killed saves of these files have left behind. REQUIRES: the
  // manifests that name them are published.
  void RemoveLeftovers(const std::set<std::string>& files) const;

  // Whether there is such a file. (FileExists of TensorFlow's local files says
  // no whatever the error is: what cannot be looked for may be there.)
  absl::StatusOr<bool> Exists(const std::string& path) const;

 private:
  tensorflow::Env* const env_;
  const std::string path_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_FILE_SET_H_
