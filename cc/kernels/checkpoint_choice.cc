#include "cc/kernels/checkpoint_choice.h"

#include <optional>

#include "cc/core/policies/worth_cut.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using Cuts = std::vector<std::optional<WorthCut>>;

// One for each shard that gets more than it holds.
absl::StatusOr<Cuts> CutsOf(const std::vector<EmbeddingTable*>& shards,
                            const std::vector<int64_t>& counts,
                            TableReader* reader) {
  Cuts cuts(shards.size());
  for (size_t s = 0; s < shards.size(); ++s) {
    const int64_t bound = shards[s]->max_size();
    if (bound == 0 || counts[s] <= bound) continue;
    TF_RETURN_IF_ERROR(
        reader->CheckBound(*shards[s], counts[s], static_cast<int64_t>(s)));
    cuts[s].emplace(bound);
  }
  return cuts;
}

}  // namespace

absl::StatusOr<std::vector<bool>> ChooseRows(
    const std::vector<EmbeddingTable*>& shards,
    const std::vector<int64_t>& counts, const ShardOfRow& shard_of,
    TableReader* reader) {
  absl::StatusOr<Cuts> cuts = CutsOf(shards, counts, reader);
  if (!cuts.ok()) return cuts.status();
  bool all_stay = true;
  for (const auto& cut : *cuts) all_stay = all_stay && !cut.has_value();
  if (all_stay) return std::vector<bool>();

  const Moment now = shards[0]->Now();
  // Calls body(cut, row, worth) for each row of those shards, in their order.
  const auto visit = [&](const auto& body) -> absl::Status {
    tensorflow::Tensor keys;
    std::vector<double> worth;
    for (int64_t c = 0; c < reader->num_chunks(); ++c) {
      TF_RETURN_IF_ERROR(reader->ReadWorth(c, *shards[0], now, &keys, &worth));
      const int64_t first = reader->first_row(c);
      for (int64_t i = 0; i < keys.NumElements(); ++i) {
        const int64_t shard = shard_of(keys, i, first + i);
        if (shard < 0) continue;
        auto& cut = (*cuts)[shard];
        if (cut.has_value()) body(&*cut, first + i, worth[i]);
      }
    }
    return absl::OkStatus();
  };
  for (bool done = false; !done;) {
    TF_RETURN_IF_ERROR(
        visit([](WorthCut* cut, int64_t, double worth) { cut->Note(worth); }));
    done = true;
    for (auto& cut : *cuts)
      done = !(cut.has_value() && !cut->EndPass()) && done;
  }
  std::vector<bool> stays(reader->num_keys(), true);
  TF_RETURN_IF_ERROR(visit([&](WorthCut* cut, int64_t row, double worth) {
    stays[row] = cut->Keeps(worth);
  }));
  return stays;
}

}  // namespace tfembed
