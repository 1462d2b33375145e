// Policies, and what a table tells of its use.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/striped_table.h"

namespace tfembed {
namespace {

constexpr int64_t kBuckets = 32;  // At a time.
constexpr int64_t kEntries = kBuckets * HashIndex::kBucketPlaces;

uint32_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

int64_t Bytes(int64_t words) { return words * RowLayout::kWordBytes; }

}  // namespace

absl::Status StripedTable::SetAdmission(const std::string& policy,
                                        int64_t max_size) {
  if (policy.empty()) return absl::OkStatus();
  auto parsed = AdmissionPolicy::Parse(policy);
  if (!parsed.ok()) return parsed.status();
  if (max_size > 0 && !(*parsed)->is_exact()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A table cannot have `max_size` with the admission policy '", policy,
        "': keys that share its counters may be admitted together, beyond the "
        "bound; got `max_size` ",
        max_size, ". Use the policy 'count', or leave one of them out."));
  }
  for (auto& filter : filters_) {
    auto made = (*parsed)->NewFilter(kNumStripes);
    if (!made.ok()) return made.status();
    filter = *std::move(made);
  }
  counters_shape_.kind = (*parsed)->counters_kind();
  if (!counters_shape_.kind.empty()) {
    counters_shape_.num_blocks = kNumStripes;
    counters_shape_.block_bytes =
        static_cast<int64_t>(filters_[0]->shared_counters().size());
  }
  return absl::OkStatus();
}

void StripedTable::SetEviction(std::unique_ptr<EvictionPolicy> policy,
                               int64_t max_size) {
  max_size_ = max_size;
  eviction_ = std::move(policy);
  touches_ = eviction_ != nullptr && eviction_->meta_words() > 0;
}

Moment StripedTable::Tick() {
  Moment now;
  if (!touches_ && !rounds_by_chance_) return now;
  now.step = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (touches_) now.second = SecondsSince1970();
  return now;
}

Moment StripedTable::Now() const {
  Moment now;
  now.step = steps_.load(std::memory_order_relaxed);
  now.second = SecondsSince1970();
  return now;
}

double StripedTable::RowWorth(const EvictionPolicy& policy, uint32_t row,
                              const Moment& now) const {
  const float* const words = store_->Row(row);
  JudgedRow judged = {words, type_, dim_, 0};
  if (policy.meta_words() > 0) judged.word = Note(words);
  return policy.Worth(judged, now);
}

TableUse StripedTable::use() const {
  const auto value = [](const Counter& counter) {
    return counter.value.load(std::memory_order_relaxed);
  };
  TableUse use;
  use.hits = value(hits_);
  use.misses = value(misses_);
  use.admitted = value(admitted_);
  use.refused = value(refused_);
  use.evicted = value(evicted_);
  use.nan_rows = value(nan_rows_);
  SharedLocks locks(stripes_);
  int64_t size = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    const HashIndex& index = stripes_[s].index();
    const HashIndex::Probes probes = index.CountProbes();
    size += index.size();
    if (index.capacity() > 0) {
      use.places += index.num_buckets() * HashIndex::kBucketPlaces;
    }
    use.probes += probes.total;
    use.longest_probe = std::max(use.longest_probe, probes.longest);
    if (filters_[s] != nullptr) use.policy_bytes += filters_[s]->bytes();
  }
  use.value_bytes = size * Bytes(layout_.slots_begin());
  use.slot_bytes = size * Bytes(layout_.slot_words());
  use.meta_bytes = size * Bytes(layout_.meta_words);
  return use;
}

absl::Status StripedTable::ExportWorth(
    const std::string& policy,
    const std::function<absl::StatusOr<WorthBuffers>(int64_t n)>& allocate,
    Executor* executor) const {
  std::unique_ptr<EvictionPolicy> parsed;
  if (!policy.empty()) {
    auto made = EvictionPolicy::Parse(policy);
    if (!made.ok()) return made.status();
    parsed = *std::move(made);
  }
  const EvictionPolicy* judge = policy.empty() ? eviction_.get() : parsed.get();
  if (judge == nullptr || (!policy.empty() && judge->meta_words() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The table's rows keep no notes for the policy '", policy,
                     "'; make the table with that eviction policy."));
  }
  const Moment now = Now();
  SharedLocks locks(stripes_);
  const auto begins = FirstKeys(stripes_);
  absl::StatusOr<WorthBuffers> buffers = allocate(begins[kNumStripes]);
  if (!buffers.ok()) return buffers.status();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    JudgeRows(stripes_[s].index(), *judge, now,
              {buffers->keys + begins[s], buffers->worth + begins[s]});
  });
  return absl::OkStatus();
}

void StripedTable::JudgeRows(const HashIndex& index,
                             const EvictionPolicy& policy, const Moment& now,
                             WorthBuffers to) const {
  const bool has_word = policy.meta_words() > 0;
  uint32_t rows[kEntries];
  for (int64_t begin = 0; begin < index.num_buckets(); begin += kBuckets) {
    const int64_t end = std::min(begin + kBuckets, index.num_buckets());
    int64_t n = 0;
    index.ForEach(begin, end, [&](int64_t key, uint32_t row) {
      to.keys[n] = key;
      rows[n] = row;
      const float* const words = store_->Row(row);
      if (has_word) {
        __builtin_prefetch(words + layout_.width() - 1);
      } else {
        PrefetchRow(words, layout_.slots_begin());
      }
      ++n;
    });
    for (int64_t i = 0; i < n; ++i) {
      to.worth[i] = RowWorth(policy, rows[i], now);
    }
    to.keys += n;
    to.worth += n;
  }
}

}  // namespace tfembed
