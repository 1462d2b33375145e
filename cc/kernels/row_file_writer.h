#ifndef TFEMBED_KERNELS_ROW_FILE_WRITER_H_
#define TFEMBED_KERNELS_ROW_FILE_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/disk_file.h"
#include "cc/kernels/file_set.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// A file that counts and checksums the bytes that it writes. Not thread-safe.
class CheckedFile {
 public:
  absl::Status Open(tensorflow::Env* env, const std::string& path);
  absl::Status Append(absl::string_view bytes);

  // Appends the whole of another file.
  absl::Status AppendFile(tensorflow::Env* env, const std::string& path);

  // Brings everything to the disk. `entry` says what was written.
  absl::Status Close();
  const FileEntry& entry() const { return entry_; }

 private:
  std::unique_ptr<tensorflow::WritableFile> file_;
  std::optional<WriteBack> write_back_;
  std::string path_;
  FileEntry entry_;
};

// Writes tables as pairs of raw files, `stems[i]` being that of tables[i].
struct RowFileSave {
  std::string name;  // The table's, whose shards `tables` are.
  std::vector<const EmbeddingTable*> tables;
  std::string folder;
  std::vector<std::string> stems;
  int64_t buffer_rows = 0;  // Copied at a time, at most; 2 MB at most, too.
  bool append = false;      // After what the files hold, else in its place.
  // Whether a row goes into the pair number (key & 0x7fffffff) % pairs, in
  // place of that of its shard. Keys of int64 only.
  bool deal_by_low_bits = false;
};

// Saves all rows at one moment: writers of the tables wait until they are
// written. One thread copies rows while another writes the rows before. Takes a
// few chunks of memory. The old files stay intact if the save fails or the
// process is killed; see file_set.h. After the commit nothing is undone: an
// error then says that the rows are saved, and what is left to do.
// InvalidArgument, DataLoss: `append` to files that cannot be loaded.
absl::Status SaveRowFiles(tensorflow::Env* env, const RowFileSave& save,
                          Executor* executor);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_ROW_FILE_WRITER_H_
