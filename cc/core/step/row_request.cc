#include "cc/core/step/row_request.h"

#include "cc/core/support/hash.h"

namespace tfembed {

RowRequest::RowRequest(int64_t keys) {
  uint64_t places = 16;
  while (places < 2 * static_cast<uint64_t>(keys)) places <<= 1;
  index_.assign(places, kNone);
  keys_.reserve(keys);
}

uint64_t RowRequest::Probe(int64_t key) const {
  const uint64_t mask = index_.size() - 1;
  uint64_t at = HashKey(key) & mask;
  while (index_[at] != kNone && keys_[index_[at]] != key) at = (at + 1) & mask;
  return at;
}

int64_t RowRequest::Add(int64_t key) {
  int32_t& number = index_[Probe(key)];
  if (number == kNone) {
    number = static_cast<int32_t>(keys_.size());
    keys_.push_back(key);
  }
  return number;
}

int64_t RowRequest::Append(int64_t key) {
  keys_.push_back(key);
  return static_cast<int64_t>(keys_.size()) - 1;
}

int64_t RowRequest::Find(int64_t key) const { return index_[Probe(key)]; }

void RowRequest::Deal(absl::Span<const int32_t> shards, int num_shards) {
  begins_.assign(num_shards + 1, 0);
  for (int32_t shard : shards) ++begins_[shard + 1];
  for (int s = 0; s < num_shards; ++s) begins_[s + 1] += begins_[s];
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  dealt_.resize(keys_.size());
  places_.resize(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    const int64_t place = next[shards[i]]++;
    dealt_[place] = keys_[i];
    places_[i] = static_cast<int32_t>(place);
  }
}

void DealByRemainder(absl::Span<const int64_t> keys, int num_shards,
                     std::vector<int32_t>* shards) {
  shards->resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto rest = static_cast<int32_t>(keys[i] % num_shards);
    (*shards)[i] = rest < 0 ? rest + num_shards : rest;
  }
}

}  // namespace tfembed
