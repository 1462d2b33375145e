#ifndef TFEMBED_KERNELS_GROUPED_TABLES_H_
#define TFEMBED_KERNELS_GROUPED_TABLES_H_

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/rows/rows.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/static_table.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfembed {

using VariablePtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

// One table of a grouped op: a variable or a table, never both.
struct GroupedTable {
  VariablePtr variable;
  TablePtr table;

  bool is_static() const { return variable != nullptr; }
};

// Reads whether each handle of the list input `tables` is a variable's, which
// has a fixed vocabulary. InvalidArgument: a handle of another resource.
absl::Status ReadFixedVocabulary(tensorflow::OpKernelContext* context,
                                 std::vector<bool>* fixed_vocabulary);

// The tables behind the handles of the list input `name`.
absl::Status FindTables(tensorflow::OpKernelContext* context,
                        absl::string_view name,
                        std::vector<GroupedTable>* tables);

// Holds the locks of variables, each once, in the order of their addresses as
// TensorFlow's own ops, so that ops cannot deadlock.
class VariableLocks {
 public:
  enum class Mode { kShared, kExclusive };

  VariableLocks(std::vector<tensorflow::Var*> variables, Mode mode);
  ~VariableLocks();

  VariableLocks(const VariableLocks&) = delete;
  VariableLocks& operator=(const VariableLocks&) = delete;

 private:
  std::vector<tensorflow::Var*> variables_;
  Mode mode_;
};

// The memory of variable `what`, which the caller has locked.
// FailedPrecondition where it is not initialized; InvalidArgument where it is
// not float [any, dim].
absl::Status ViewVariable(tensorflow::Var* variable, absl::string_view what,
                          int64_t dim, StaticTable* view);

// Schedules moving the variable's rows to huge pages in the background;
// TensorFlow allocates them on small pages. The caller holds the variable's
// lock.
void NoteRows(tensorflow::Var* variable);

// InvalidArgument where the table's rows are not `dim` wide.
absl::Status CheckDim(const TableResource& table, absl::string_view what,
                      int64_t dim);

// Returns `status`, or, if an id out of bounds of a static table was the cause,
// an InvalidArgument that names its feature. num_rows[t] is -1 for other
// tables.
absl::Status NameBadId(const absl::Status& status, const GroupedSpec& spec,
                       absl::Span<const FeatureInput> features,
                       const std::vector<int64_t>& num_rows);

// Converts the string ids of a grouped op's features to the int64 keys of their
// tables. Strings pass through a step as strings, and each op finds their keys
// again: so a string without a row may be removed between a lookup and its
// update. While this object exists no string is removed.
//
// Its locks come before those of batches and stripes, in the order in which
// code that removes strings locks them (see EmbeddingTable's implementation).
class StringIds {
 public:
  // Sets the ids of the features that have strings. InvalidArgument, naming the
  // feature, where strings and keys do not go together; ResourceExhausted.
  absl::Status Read(const GroupedSpec& spec,
                    absl::Span<const GroupedTable> tables, NewKeys new_keys,
                    Executor* executor, std::vector<FeatureTensors>* tensors);

  // Ends the use of the keys, and removes strings that were added without a row
  // if there are many. REQUIRES: no lock of the tables is held.
  void Finish();

 private:
  std::vector<const EmbeddingTable*> used_;  // Each once.
  std::vector<std::shared_lock<SharedMutex>> users_;
};

// Numbers the strings of one batch, without tables: equal strings of a table's
// features get equal numbers, from 0 on. InvalidArgument: a table's features
// have both strings and integers.
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

#endif  // TFEMBED_KERNELS_GROUPED_TABLES_H_
