#ifndef TFEMBED_CORE_KV_INTERFACE_H_
#define TFEMBED_CORE_KV_INTERFACE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/core/embedding_table.h"
#include "cc/core/initial_rows.h"

namespace tfembed {

// A place in which the rows of tables are kept. What a store must do is the
// contract of EmbeddingTable (embedding_table.h): all callers, kernels and
// grouped lookups and updates, hold a table by that class alone. A new store is
// a class derived from it, in this folder, and a line in stores.cc; the suite
// of conformance_test.cc is then run over it.
class KvStore {
 public:
  virtual ~KvStore() = default;

  // As in "memory".
  virtual absl::string_view name() const = 0;

  // An empty table. As EmbeddingTable::Create.
  virtual absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const EmbeddingTable::Options& options,
      InitialRows initial_rows) const = 0;
};

// All stores of this build, "memory" first. They live as long as the process.
std::vector<const KvStore*> AllStores();

// InvalidArgument: no store has this name; the text lists those that there are.
absl::StatusOr<const KvStore*> FindStore(absl::string_view name);

}  // namespace tfembed

#endif  // TFEMBED_CORE_KV_INTERFACE_H_
