// Admission and eviction: keys that wait for admission, and what eviction notes
// of rows.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {
namespace {

uint32_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

absl::Status EmbeddingTable::SetAdmission(const std::string& policy,
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
  int64_t counters = 0;
  for (TableStripe& stripe : stripes_) {
    auto made = (*parsed)->NewFilter(kNumStripes);
    if (!made.ok()) return made.status();
    counters = static_cast<int64_t>((*made)->shared_counters().size());
    const StripeLock lock(stripes_, stripe);
    stripe.SetFilter(*std::move(made));
  }
  admits_all_ = false;
  counters_shape_.kind = (*parsed)->counters_kind();
  if (!counters_shape_.kind.empty()) {
    counters_shape_.num_blocks = kNumStripes;
    counters_shape_.block_bytes = counters;
  }
  return absl::OkStatus();
}

void EmbeddingTable::SetEviction(std::unique_ptr<EvictionPolicy> policy,
                                 int64_t max_size) {
  max_size_ = max_size;
  eviction_ = std::move(policy);
  touches_ = eviction_ != nullptr && eviction_->meta_words() > 0;
}

Moment EmbeddingTable::Tick() {
  Moment now;
  if (!touches_ && !rounds_by_chance_) return now;
  now.step = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (touches_) now.second = SecondsSince1970();
  return now;
}

Moment EmbeddingTable::Now() const {
  Moment now;
  now.step = steps_.load(std::memory_order_relaxed);
  now.second = SecondsSince1970();
  return now;
}

double EmbeddingTable::RowWorth(const EvictionPolicy& policy, uint32_t row,
                                const Moment& now) const {
  const float* const words = store_->Row(row);
  JudgedRow judged = {words, type_, dim_, 0};
  if (policy.meta_words() > 0) judged.word = Note(words);
  return policy.Worth(judged, now);
}

void EmbeddingTable::JudgeImport(const void* values, const uint32_t* notes,
                                 int64_t n, const Moment& now,
                                 double* worth) const {
  JudgedRow row = {values, type_, dim_, 0};
  for (int64_t i = 0; i < n; ++i) {
    if (touches_) row.word = eviction_->Restored(notes[i], now);
    worth[i] = eviction_->Worth(row, now);
    if (!touches_)
      row.value = static_cast<const char*>(row.value) + value_bytes();
  }
}

absl::Status EmbeddingTable::FindJudge(const std::string& policy,
                                       std::unique_ptr<EvictionPolicy>* parsed,
                                       const EvictionPolicy** judge) const {
  if (!policy.empty()) {
    auto made = EvictionPolicy::Parse(policy);
    if (!made.ok()) return made.status();
    *parsed = *std::move(made);
  }
  *judge = policy.empty() ? eviction_.get() : parsed->get();
  if (*judge == nullptr || (!policy.empty() && (*judge)->meta_words() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The table's rows keep no notes for the policy '", policy,
                     "'; make the table with that eviction policy."));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingTable::ExportWorth(
    const std::string& policy,
    const std::function<absl::StatusOr<WorthBuffers>(int64_t n)>& allocate,
    Executor* executor) const {
  std::unique_ptr<EvictionPolicy> parsed;
  const EvictionPolicy* judge;
  const absl::Status status = FindJudge(policy, &parsed, &judge);
  if (!status.ok()) return status;
  const Moment now = Now();
  SharedLocks locks(stripes_, Stay::kLong);
  const auto begins = stripes_.FirstKeys();
  absl::StatusOr<WorthBuffers> buffers = allocate(begins[kNumStripes]);
  if (!buffers.ok()) return buffers.status();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    stripes_.AssertReaderHeld();
    stripes_.any().AssertReaderHeld();
    const HashIndex& index = stripes_.index(s);
    WorthBuffers to = {buffers->keys + begins[s], buffers->worth + begins[s]};
    for (int64_t begin = 0; begin < index.num_buckets();
         begin += kJudgedBuckets) {
      const int64_t n = JudgeRows(index, begin, *judge, now, to);
      to.keys += n;
      to.worth += n;
    }
  });
  return absl::OkStatus();
}

int64_t EmbeddingTable::JudgeRows(const HashIndex& index, int64_t begin,
                                  const EvictionPolicy& policy,
                                  const Moment& now, WorthBuffers to) const {
  const bool has_word = policy.meta_words() > 0;
  uint32_t rows[kJudgedKeys];
  const int64_t end = std::min(begin + kJudgedBuckets, index.num_buckets());
  int64_t n = 0;
  index.ForEach(begin, end, [&](int64_t key, uint32_t row) {
    to.keys[n] = key;
    rows[n] = row;
    const float* const words = store_->Row(row);
    stripes_.any().AssertReaderHeld();
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
  return n;
}

int64_t EmbeddingTable::CountWaiting() const {
  if (admits_all_) return 0;
  int64_t waiting = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    waiting += stripes_.filter(s)->num_waiting();
  }
  return waiting;
}

void EmbeddingTable::ForEachWaiting(
    const AdmissionFilter::WaitingVisitor& visit) const {
  if (admits_all_) return;
  for (int s = 0; s < kNumStripes; ++s) {
    stripes_.filter(s)->ForEachWaiting(visit);
  }
}

int64_t EmbeddingTable::num_waiting() const {
  const SharedLocks locks(stripes_);
  return CountWaiting();
}

void EmbeddingTable::IsKnown(absl::Span<const int64_t> keys,
                             bool* known) const {
  Contains(keys, known, nullptr);
  if (admits_all_) return;
  const SharedLocks locks(stripes_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = HashKey(keys[i]);
    known[i] |= stripes_.filter(StripeOf(hash))->IsWaiting(hash, keys[i]);
  }
}

absl::Status EmbeddingTable::ImportWaiting(absl::Span<const int64_t> keys,
                                           absl::Span<const int32_t> seen) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (seen[i] >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("A key that waits has been seen at least once; key ",
                     keys[i], " was ", seen[i], " times."));
  }
  if (admits_all_) return absl::OkStatus();
  // A batch that counts what it will insert must find the same when it inserts.
  const auto hold = HoldIfBounded();
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, nullptr);
  if (!partition.ok()) return partition.status();
  for (int s = 0; s < kNumStripes; ++s) {
    const KeyGroup group = partition->group(s);
    if (group.size == 0) continue;
    const StripeLock lock(stripes_, stripes_[s]);
    AdmissionFilter* const filter = stripes_[s].mutable_filter();
    absl::Status status = filter->Reserve(group.size);
    if (!status.ok()) return status;
    for (int64_t i = 0; i < group.size; ++i) {
      const int64_t key = group.keys[i];
      const uint64_t hash = HashKey(key);
      if (stripes_[s].Find(hash, key) != HashIndex::kNoRow) continue;
      filter->Wait(hash, key, seen[group.positions[i]]);
    }
    filter->Release(group.size);
  }
  return absl::OkStatus();
}

void EmbeddingTable::ImportCounters(int64_t block,
                                    absl::Span<const uint8_t> counters) {
  const StripeLock lock(stripes_, stripes_[block]);
  absl::c_copy(counters,
               stripes_[block].mutable_filter()->shared_counters().begin());
}

absl::Status EmbeddingTable::ImportNotes(absl::Span<const int64_t> keys,
                                         absl::Span<const uint32_t> notes) {
  if (!touches_) return absl::OkStatus();
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, nullptr);
  if (!partition.ok()) return partition.status();
  const Moment now = Now();
  for (int s = 0; s < kNumStripes; ++s) {
    const KeyGroup group = partition->group(s);
    if (group.size == 0) continue;
    const StripeLock lock(stripes_, stripes_[s]);
    for (int64_t i = 0; i < group.size; ++i) {
      const uint32_t found =
          stripes_[s].Find(HashKey(group.keys[i]), group.keys[i]);
      if (found == HashIndex::kNoRow) continue;
      float* const row = store_->Row(found);
      SetNote(notes[group.positions[i]], row);
      TakeNote(now, row);
    }
  }
  return absl::OkStatus();
}

}  // namespace tfembed
