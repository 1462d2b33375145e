#include "cc/core/table/table_bound.h"

#include <algorithm>
#include <array>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/prefetch.h"

namespace tfembed {
namespace {

constexpr int64_t kSamplesPerRow = 8;

// The rows of so many keys are asked for before the first of them is read.
constexpr size_t kJudgedAtOnce = 128;

}  // namespace

// A bit for each pinned key among 16 times as many: few of the other keys are
// looked for among all of them.
class EmbeddingTable::Bound::PinnedFilter {
 public:
  // Throws std::bad_alloc.
  explicit PinnedFilter(const std::vector<Id>& ids) {
    size_t words = 1;
    while (words * kWordBits < 16 * ids.size()) words *= 2;
    bits_.resize(words);
    for (const Id& id : ids) bits_[At(id)] |= Bit(id);
  }

  bool MayHave(const Id& id) const { return (bits_[At(id)] & Bit(id)) != 0; }

 private:
  static constexpr size_t kWordBits = 64;

  static uint64_t Bit(const Id& id) {
    return uint64_t{1} << id.hash % kWordBits;
  }
  size_t At(const Id& id) const {
    return id.hash / kWordBits & (bits_.size() - 1);
  }

  std::vector<uint64_t> bits_;
};

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
                   " keys; none of them was written. Split it."));
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
        "; the shard was not changed. Use smaller batches or a larger "
        "`max_size`."));
  }
  pinned_ = std::move(distinct);
  hold_ = std::unique_lock<SharedMutex>(table_.batches_);
  if (trains_) {
    const absl::Status kept = table_.CheckDrops(drops_);
    if (!kept.ok()) return kept;
  }
  new_ = CountNew(inserts.data() == keys.data() ? pinned_ : Distinct(inserts));
  const int64_t new_keys =
      std::accumulate(new_.begin(), new_.end(), int64_t{0});
  const absl::StatusOr<int64_t> fresh = table_.store_->Promise(new_keys);
  if (!fresh.ok()) return fresh.status();
  promised_ = new_keys;
  ChooseLeaving(new_keys);
  return AskForMemory(*fresh);
}

// New keys take the rows of keys that leave, or left before.
absl::Status EmbeddingTable::Bound::AskForMemory(int64_t fresh_bytes) {
  int64_t rows = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeReaderLock lock(table_.stripes_, table_.stripes_[s]);
    rows += new_[s] - leaving_[s] - table_.stripes_[s].rows().num_free();
  }
  rows = std::max<int64_t>(0, rows);
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
  DealRows();
}

// Has each stripe hold a row for each of its new keys.
void EmbeddingTable::Bound::DealRows() {
  int64_t wanted = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeReaderLock lock(table_.stripes_, table_.stripes_[s]);
    const int64_t available = table_.stripes_[s].rows().available();
    wanted += std::max<int64_t>(0, new_[s] - available);
  }
  RowPool spare;
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeLock lock(table_.stripes_, table_.stripes_[s]);
    table_.stripes_[s].mutable_rows()->MoveTo(&spare, wanted, new_[s]);
  }
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeLock lock(table_.stripes_, table_.stripes_[s]);
    table_.stripes_[s].mutable_rows()->Fill(new_[s], &spare,
                                            table_.store_.get());
  }
}

std::vector<EmbeddingTable::Bound::Candidate> EmbeddingTable::Bound::Sample(
    int64_t wanted) {
  Counts buckets;
  for (int s = 0; s < kNumStripes; ++s) {
    table_.stripes_[s].mutex().AssertReaderHeld();  // By batches_.
    buckets[s] = table_.stripes_[s].index().num_buckets();
  }
  // A round takes a bucket of the largest stripe, and as large a part of each
  // other one.
  const int64_t rounds = *std::max_element(buckets.begin(), buckets.end());
  const int64_t positions = rounds * kNumStripes;
  const PinnedFilter filter(pinned_);
  const Moment now = table_.Now();
  table_.batches_.AssertHeld();
  std::vector<Candidate> sample;
  size_t judged = 0;
  int64_t hand = table_.hand_ % positions;
  for (int64_t passed = 0; passed < positions; ++passed) {
    if (static_cast<int64_t>(sample.size()) >= wanted) break;
    const int64_t round = hand / kNumStripes;
    const int64_t s = hand % kNumStripes;
    AddCandidates(table_.stripes_[s], round * buckets[s] / rounds,
                  (round + 1) * buckets[s] / rounds, filter, &sample);
    if (sample.size() - judged >= kJudgedAtOnce) {
      judged = Judge(now, judged, &sample);
    }
    if (++hand == positions) hand = 0;
  }
  Judge(now, judged, &sample);
  table_.hand_ = hand;
  return sample;
}

void EmbeddingTable::Bound::AddCandidates(const TableStripe& stripe,
                                          int64_t begin, int64_t end,
                                          const PinnedFilter& filter,
                                          std::vector<Candidate>* to) const {
  if (begin == end) return;
  const int64_t width = table_.store_->width();
  const StripeReaderLock lock(table_.stripes_, stripe);
  stripe.index().ForEach(begin, end, [&](int64_t key, uint32_t row) {
    const Id id = {HashKey(key), key};
    if (filter.MayHave(id) &&
        std::binary_search(pinned_.begin(), pinned_.end(), id)) {
      return;
    }
    const float* const words = table_.store_->Row(row);
    if (table_.touches_) {
      PrefetchRow(words + width - 1, 1);
    } else {
      PrefetchRow(words, width);
    }
    to->push_back({0, key, row});
  });
}

size_t EmbeddingTable::Bound::Judge(const Moment& now, size_t begin,
                                    std::vector<Candidate>* sample) const {
  table_.stripes_.any().AssertReaderHeld();  // By batches_.
  for (size_t i = begin; i < sample->size(); ++i) {
    Candidate& candidate = (*sample)[i];
    candidate.worth = table_.RowWorth(*table_.eviction_, candidate.row, now);
  }
  return sample->size();
}

}  // namespace tfembed
