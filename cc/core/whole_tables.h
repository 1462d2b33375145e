#ifndef TFEMBED_CORE_WHOLE_TABLES_H_
#define TFEMBED_CORE_WHOLE_TABLES_H_

#include <set>
#include <shared_mutex>
#include <vector>

#include "absl/types/span.h"
#include "cc/core/embedding_table.h"

namespace tfembed {

// Locks EmbeddingTable::whole() of several tables, in the order of addresses,
// so that no two can wait for each other. REQUIRES: the caller holds no lock of
// the tables.
template <typename Lock>
std::vector<Lock> LockWhole(absl::Span<const EmbeddingTable* const> tables) {
  std::vector<Lock> locks;
  const std::set<const EmbeddingTable*> sorted(tables.begin(), tables.end());
  for (const EmbeddingTable* table : sorted) locks.emplace_back(table->whole());
  return locks;
}

// By who takes all that tables hold, and by who replaces it.
using WholeTables = std::vector<std::shared_lock<std::shared_mutex>>;
using ReplacedTables = std::vector<std::unique_lock<std::shared_mutex>>;

}  // namespace tfembed

#endif  // TFEMBED_CORE_WHOLE_TABLES_H_
