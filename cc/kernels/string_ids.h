#ifndef TFEMBED_KERNELS_STRING_IDS_H_
#define TFEMBED_KERNELS_STRING_IDS_H_

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/key_batch.h"

namespace tfembed {

// The ids of a grouped op's features that are strings, as the int64 keys of
// their tables. Strings travel through a step as they are, and each op finds
// their keys anew: so nothing need keep a string without a row from being
// forgotten between a lookup and its update. While this lives none is.
//
// Its locks come before those of batches and stripes, which whoever forgets
// strings takes after them (see EmbeddingTable's implementation).
class StringIds {
 public:
  // Sets the ids of the features that have strings. InvalidArgument, naming the
  // feature, where strings and keys do not go together; ResourceExhausted.
  absl::Status Read(const GroupedSpec& spec,
                    absl::Span<const GroupedTable> tables, NewKeys new_keys,
                    Executor* executor, std::vector<FeatureTensors>* tensors);

  // Ends the use of the keys, and forgets strings that were added without a row
  // where they have become many. REQUIRES: no lock of the tables is held.
  void Finish();

 private:
  std::vector<const EmbeddingTable*> used_;  // Each once.
  std::vector<std::shared_lock<std::shared_mutex>> users_;
};

// The same for one batch, without tables: equal strings of a table's features
// get equal numbers, from 0 on. InvalidArgument where a table's features have
// both strings and integers.
class BatchStrings {
 public:
  absl::Status Number(const GroupedSpec& spec,
                      std::vector<FeatureTensors>* tensors);

  // Whether the ids of table t are strings; then strings(t)[i] is number i.
  bool are_strings(int t) const { return tables_[t].are_strings; }
  const std::vector<absl::string_view>& strings(int t) const {
    return tables_[t].strings;
  }

 private:
  struct Table {
    bool has_features = false;
    bool are_strings = false;
    std::vector<absl::string_view> strings;
  };
  std::vector<Table> tables_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_STRING_IDS_H_
