#include "cc/core/table/table_bound.h"

#include <algorithm>
#include <array>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr int64_t kSamplesPerRow = 8;

}  // namespace

std::vector<EmbeddingTable::Bound::Id> EmbeddingTable::Bound::Distinct(
    absl::Span<const int64_t> keys) {
  std::vector<Id> ids;
  ids.reserve(keys.size());
  for (int64_t key : keys) ids.push_back({HashKey(key), key});
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

absl::Status EmbeddingTable::Bound::Pin(absl::Span<const int64_t> keys,
                                        absl::Span<const int64_t> inserts) {
  try {
    return TryPin(keys, inserts);
  } catch (const std::bad_alloc&) {
    return NoMemoryToPin(keys.size());
  }
}

absl::Status EmbeddingTable::NoMemoryToPin(int64_t keys) {
  return absl::ResourceExhaustedError(
      absl::StrCat("No memory to choose which keys leave for a batch of ", keys,
                   " keys; nothing was changed. Split it."));
}

absl::Status EmbeddingTable::Bound::TryPin(absl::Span<const int64_t> keys,
                                           absl::Span<const int64_t> inserts) {
  std::vector<Id> distinct = Distinct(keys);
  if (static_cast<int64_t>(distinct.size()) > table_.max_size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A batch has ", distinct.size(),
        " distinct keys of a table shard that "
        "holds at most ",
        table_.max_size_,
        "; nothing was changed. Use smaller batches or a larger `max_size`."));
  }
  pinned_ = std::move(distinct);
  hold_ = std::unique_lock<SharedMutex>(table_.batches_);
  new_ = CountNew(inserts.data() == keys.data() ? pinned_ : Distinct(inserts));
  const int64_t new_keys =
      std::accumulate(new_.begin(), new_.end(), int64_t{0});
  const absl::StatusOr<int64_t> fresh = table_.store_->Promise(new_keys);
  if (!fresh.ok()) return fresh.status();
  promised_ = new_keys;
  ChooseLeaving(new_keys);
  return AskForMemory(*fresh);
}

// New keys of a stripe take the rows of those that leave it, or left it before.
absl::Status EmbeddingTable::Bound::AskForMemory(int64_t fresh_bytes) {
  int64_t rows = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeReaderLock lock(table_.stripes_, table_.stripes_[s]);
    const int64_t new_keys = std::max<int64_t>(0, new_[s] - leaving_[s]);
    rows += table_.stripes_[s].CountFreshRows(new_keys);
  }
  return memory_.Ask(std::min(fresh_bytes, table_.store_->BytesOf(rows)));
}

EmbeddingTable::Bound::Counts EmbeddingTable::Bound::CountNew(
    const std::vector<Id>& ids) const {
  Counts new_keys = {};
  for (const Id& id : ids) {
    const int s = StripeOf(id.hash);
    const StripeReaderLock lock(table_.stripes_, table_.stripes_[s]);
    if (table_.stripes_[s].Find(id.hash, id.key) != HashIndex::kNoRow) continue;
    const AdmissionFilter* filter = table_.stripes_[s].filter();
    if (trains_ && filter != nullptr && !filter->WouldAdmit(id.hash, id.key)) {
      continue;
    }
    ++new_keys[s];
  }
  return new_keys;
}

int64_t EmbeddingTable::Bound::Places(int stripe, int64_t keys) const {
  if (!is_held()) return keys;
  const int64_t new_keys = std::min(keys, new_[stripe]);
  return std::max<int64_t>(0, new_keys - leaving_[stripe]);
}

void EmbeddingTable::Bound::ChooseLeaving(int64_t new_keys) {
  const int64_t excess = table_.size() + new_keys - table_.max_size_;
  if (excess <= 0) return;
  std::vector<Candidate> sample = Sample(kSamplesPerRow * excess);
  if (static_cast<int64_t>(sample.size()) > excess) {
    std::nth_element(sample.begin(), sample.begin() + excess, sample.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.worth < b.worth;
                     });
    sample.resize(excess);
  }
  leaving_keys_.reserve(sample.size());
  for (const Candidate& candidate : sample) {
    leaving_keys_.push_back(candidate.key);
    ++leaving_[StripeOf(HashKey(candidate.key))];
  }
}

void EmbeddingTable::Bound::MakeRoom() {
  table_.evicted_.Add(table_.RemoveKeys(leaving_keys_, nullptr));
  leaving_keys_.clear();
  leaving_.fill(0);
}

std::vector<EmbeddingTable::Bound::Candidate> EmbeddingTable::Bound::Sample(
    int64_t wanted) {
  std::array<int64_t, kNumStripes + 1> begins =
      {};  // The first bucket, by stripe.
  for (int s = 0; s < kNumStripes; ++s) {
    table_.stripes_[s].mutex().AssertReaderHeld();  // By batches_.
    begins[s + 1] = begins[s] + table_.stripes_[s].index().num_buckets();
  }
  const int64_t buckets = begins[kNumStripes];
  const Moment now = table_.Now();
  table_.batches_.AssertHeld();
  std::vector<Candidate> sample;
  int64_t hand = table_.hand_ % buckets;
  int s = 0;
  while (begins[s + 1] <= hand) ++s;
  for (int64_t passed = 0; passed < buckets; ++passed) {
    if (static_cast<int64_t>(sample.size()) >= wanted) break;
    AddCandidates(table_.stripes_[s], hand - begins[s], now, &sample);
    if (++hand == buckets) hand = s = 0;
    if (hand == begins[s + 1]) ++s;
  }
  table_.hand_ = hand;
  return sample;
}

void EmbeddingTable::Bound::AddCandidates(const TableStripe& stripe,
                                          int64_t bucket, const Moment& now,
                                          std::vector<Candidate>* to) const {
  const StripeReaderLock lock(table_.stripes_, stripe);
  stripe.index().ForEach(bucket, bucket + 1, [&](int64_t key, uint32_t row) {
    const Id id = {HashKey(key), key};
    if (std::binary_search(pinned_.begin(), pinned_.end(), id)) return;
    table_.stripes_.any().AssertReaderHeld();
    to->push_back({table_.RowWorth(*table_.eviction_, row, now), key});
  });
}

}  // namespace tfembed
