#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/kv/interface.h"

namespace tfembed {
namespace {

// Host memory of this process: StripedTable.
class MemoryStore final : public KvStore {
 public:
  absl::string_view name() const override { return "memory"; }

  absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const EmbeddingTable::Options& options,
      InitialRows initial_rows) const override {
    return EmbeddingTable::Create(options, std::move(initial_rows));
  }
};

}  // namespace

std::vector<const KvStore*> AllStores() {
  static const auto* const memory = new MemoryStore;
  return {memory};
}

absl::StatusOr<const KvStore*> FindStore(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const KvStore* store : AllStores()) {
    if (store->name() == name) return store;
    names.push_back(store->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("There is no store '", name,
                   "'; this build has: ", absl::StrJoin(names, ", "), "."));
}

}  // namespace tfembed
