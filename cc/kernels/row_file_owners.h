#ifndef TFEMBED_KERNELS_ROW_FILE_OWNERS_H_
#define TFEMBED_KERNELS_ROW_FILE_OWNERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/kernels/file_set.h"
#include "cc/kernels/table_resource.h"

namespace tfembed {

// Raw files are named after their table, but names are not unique: a program
// may have two tables of one name, and "a/b" and "a_b" have the same files. So
// that no table replaces another table's rows:
//
//   - A manifest has the name of the table whose rows are in the files.
//   - A process remembers which table wrote which files, by the id of the save.
//     While that table exists, another one may write there only if it has
// loaded
//     these files since. After a restart only the name counts.

// The identity of a table for files.
struct RowFileUser {
  std::string name;
  // The same for all shards of a table, and in all sessions of its graph; no
  // other table's.
  std::string id;
  // A shard, which lives as long as the table does. Not null.
  TableResource* shard = nullptr;
};

// The exclusive right of one save to write some files. Other tables cannot
// take it meanwhile, under any name of the folder; other saves of the same
// table wait. One claim is not thread-safe; claims in several threads are.
class RowFileClaim {
 public:
  // `folder` must outlive the claim.
  RowFileClaim(const FileFolder& folder, RowFileUser user)
      : folder_(folder), user_(std::move(user)) {}
  RowFileClaim(const RowFileClaim&) = delete;
  RowFileClaim& operator=(const RowFileClaim&) = delete;

  // Remembers what has been saved, and gives the right back.
  ~RowFileClaim();

  // Blocks while other saves of the table write some of the files.
  // AlreadyExists: the files hold, or are just getting, the rows of another
  // table. DataLoss, InvalidArgument: their manifest cannot be read. REQUIRES:
  // called once.
  absl::Status Take(absl::Span<const std::string> stems);

 private:
  struct ClaimedSet {
    std::string path;
    uint64_t old_save = 0;  // 0: there was none.
  };

  absl::Status Check(const std::string& stem, const Manifest& manifest) const;
  void NoteSaved(const std::string& set, uint64_t old_save,
                 const Manifest& manifest) const;

  const FileFolder& folder_;
  const RowFileUser user_;
  std::vector<std::string> stems_;
  std::map<std::string, ClaimedSet> sets_;
};

// Remembers that a table has loaded the rows of `stem`, so that it may write
// them again.
void NoteLoaded(const FileFolder& folder, const std::string& stem,
                const RowFileUser& user);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_ROW_FILE_OWNERS_H_
