// How a table was used, and some of its rows from which to judge the whole.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {
namespace {

int64_t Bytes(int64_t words) { return words * RowLayout::kWordBytes; }

void AddProbes(const HashIndex::Probes& probes, TableUse* use) {
  use->probes += probes.total;
  use->longest_probe = std::max(use->longest_probe, probes.longest);
}

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

TableUse EmbeddingTable::CountUse() const {
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
  int64_t size = 0;
  for (int s = 0; s < kNumStripes; ++s) {
    const HashIndex& index = stripes_.index(s);
    size += index.size();
    if (index.capacity() > 0) {
      use.places += index.num_buckets() * HashIndex::kBucketPlaces;
    }
    if (!admits_all_) use.policy_bytes += stripes_.filter(s)->bytes();
  }
  stripes_.any().AssertReaderHeld();
  use.value_bytes = size * Bytes(layout_.slots_begin());
  use.slot_bytes = size * Bytes(layout_.slot_words());
  use.meta_bytes = size * Bytes(layout_.meta_words);
  return use;
}

TableUse EmbeddingTable::use() const {
  SharedLocks locks(stripes_, Stay::kLong);
  TableUse use = CountUse();
  for (int s = 0; s < kNumStripes; ++s) {
    const HashIndex& index = stripes_.index(s);
    AddProbes(index.CountProbes(), &use);
  }
  return use;
}

EmbeddingTable::Survey EmbeddingTable::SurveyRows(int64_t rows,
                                                  Executor* executor) const {
  const int64_t each =
      std::max<int64_t>(0, rows) / kNumStripes + (rows % kNumStripes > 0);
  const Moment now = Now();
  std::vector<Survey> of_stripes(kNumStripes);
  SharedLocks locks(stripes_, Stay::kLong);
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    stripes_.AssertReaderHeld();
    stripes_.any().AssertReaderHeld();
    SurveyStripe(stripes_.index(s), each, now, &of_stripes[s]);
  });
  Survey survey;
  survey.use = CountUse();
  survey.size = stripes_.FirstKeys()[kNumStripes];
  survey.waiting = CountWaiting();
  for (const Survey& one : of_stripes) {
    Append(one.keys, &survey.keys);
    Append(one.norms, &survey.norms);
    Append(one.worth, &survey.worth);
    Append(one.trained, &survey.trained);
    AddProbes({one.use.probes, one.use.longest_probe}, &survey.use);
  }
  return survey;
}

void EmbeddingTable::SurveyStripe(const HashIndex& index, int64_t rows,
                                  const Moment& now, Survey* survey) const {
  std::vector<char> initial(std::max<int64_t>(1, value_bytes()));
  const float* found[kJudgedKeys];
  int64_t begin = 0;
  while (begin < index.num_buckets() &&
         static_cast<int64_t>(survey->keys.size()) < rows) {
    const int64_t end = std::min(begin + kJudgedBuckets, index.num_buckets());
    int64_t n = 0;
    index.ForEach(begin, end, [&](int64_t key, uint32_t row) {
      survey->keys.push_back(key);
      found[n] = store_->Row(row);
      PrefetchRow(found[n++], store_->width());
    });
    AddProbes(index.CountProbes(begin, end), &survey->use);
    const int64_t* const keys = survey->keys.data() + survey->keys.size() - n;
    for (int64_t i = 0; i < n; ++i) {
      JudgedRow judged = {found[i], type_, dim_, 0};
      const double squared = type_.SquaredNorm(found[i], dim_);
      survey->norms.push_back(std::isnan(squared) ? -1 : std::sqrt(squared));
      survey->trained.push_back(IsTrained(keys[i], found[i], initial.data()));
      if (eviction_ == nullptr) continue;
      if (touches_) judged.word = Note(found[i]);
      survey->worth.push_back(eviction_->Worth(judged, now));
    }
    begin = end;
  }
}

bool EmbeddingTable::IsTrained(int64_t key, const float* row,
                               void* initial) const {
  const int64_t slots = Bytes(layout_.slot_words());
  if (slots > 0) {
    return std::memcmp(row + layout_.slots_begin(), new_tail_.data(), slots) !=
           0;
  }
  if (dim_ == 0) return false;
  initial_rows_.Fill(key, initial);
  return std::memcmp(row, initial, value_bytes()) != 0;
}

absl::StatusOr<std::vector<EmbeddingTable::WorthyKey>> EmbeddingTable::FindTop(
    const std::string& policy, int64_t most, Executor* executor) const {
  std::unique_ptr<EvictionPolicy> parsed;
  const EvictionPolicy* judge;
  const absl::Status status = FindJudge(policy, &parsed, &judge);
  if (!status.ok()) return status;
  // Of equal worth the smaller key counts as higher, whatever the number of
  // threads. On top of each heap lies the lowest of its keys.
  const auto is_higher = [](const WorthyKey& a, const WorthyKey& b) {
    return a.worth != b.worth ? a.worth > b.worth : a.key < b.key;
  };
  std::vector<std::vector<WorthyKey>> heaps(kNumStripes);
  const Moment now = Now();
  SharedLocks locks(stripes_, Stay::kLong);
  ParallelFor(executor, most <= 0 ? 0 : kNumStripes, [&](int64_t s) {
    stripes_.AssertReaderHeld();
    stripes_.any().AssertReaderHeld();
    const HashIndex& index = stripes_.index(s);
    std::vector<WorthyKey>& heap = heaps[s];
    int64_t keys[kJudgedKeys];
    double worth[kJudgedKeys];
    for (int64_t begin = 0; begin < index.num_buckets();
         begin += kJudgedBuckets) {
      const int64_t n = JudgeRows(index, begin, *judge, now, {keys, worth});
      for (int64_t i = 0; i < n; ++i) {
        const WorthyKey found = {keys[i], worth[i]};
        const bool is_full = static_cast<int64_t>(heap.size()) == most;
        if (is_full && !is_higher(found, heap.front())) continue;
        if (is_full) {
          absl::c_pop_heap(heap, is_higher);
          heap.pop_back();
        }
        heap.push_back(found);
        absl::c_push_heap(heap, is_higher);
      }
    }
  });
  std::vector<WorthyKey> top;
  for (const auto& heap : heaps)
    top.insert(top.end(), heap.begin(), heap.end());
  absl::c_sort(top, is_higher);
  if (static_cast<int64_t>(top.size()) > most) {
    top.resize(std::max<int64_t>(0, most));
  }
  return top;
}

}  // namespace tfembed
