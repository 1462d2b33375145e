#include "cc/core/hash_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr double kMaxLoad = 0.74;
constexpr double kGrowth = 1.5;
constexpr int64_t kMostGrowth = 8;  // In place.
constexpr uint8_t kStuck = std::numeric_limits<uint8_t>::max();

int64_t CapacityOf(int64_t num_buckets) {
  return static_cast<int64_t>(kMaxLoad * HashIndex::kBucketPlaces *
                              static_cast<double>(num_buckets));
}

}  // namespace

int64_t HashIndex::BucketsFor(int64_t keys) const {
  const double needed = static_cast<double>(keys) / (kMaxLoad * kBucketPlaces);
  // Between the steps of the series kGrowth^(phase + k), k = 0, 1, 2 ...
  const double step = std::ceil(
      std::log(std::max(needed, 1.0)) / std::log(kGrowth) - growth_phase_);
  int64_t buckets =
      static_cast<int64_t>(std::ceil(std::pow(kGrowth, growth_phase_ + step)));
  buckets = std::max<int64_t>(buckets, 1);
  while (CapacityOf(buckets) < keys) ++buckets;
  return buckets;
}

absl::Status HashIndex::Reserve(int64_t keys) {
  if (keys <= capacity_) return absl::OkStatus();
  absl::Status status = Promise(keys);
  if (status.ok()) Grow();
  return status;
}

absl::Status HashIndex::Promise(int64_t keys) {
  if (keys <= promised_capacity_) return absl::OkStatus();
  const int64_t num_buckets = BucketsFor(keys);
  if (num_buckets > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("A stripe of a table holds at most 2^34 keys; got ", keys,
                     ". Use more shards."));
  }
  const int64_t bytes = num_buckets * int64_t{sizeof(Bucket)};
  const bool moves = !memory_.CanExtend(bytes);
  const int64_t moved = moves ? this->bytes() : 0;
  const int64_t fresh = bytes + moved - this->bytes() - promise_.bytes();
  absl::Status status = promise_.Ask(fresh);
  if (!status.ok()) return status;
  if (moves) status = Move(bytes);
  if (!status.ok()) {
    promise_.Return(fresh);
    return status;
  }
  promise_.Return(moved);  // Written now; the old memory has gone.
  promised_buckets_ = static_cast<uint32_t>(num_buckets);
  promised_capacity_ = CapacityOf(num_buckets);
  return absl::OkStatus();
}

absl::Status HashIndex::Move(size_t bytes) {
  absl::StatusOr<MemoryBlock> memory =
      MemoryBlock::AllocateExtensible(bytes, kMostGrowth * bytes);
  if (!memory.ok()) return memory.status();
  std::memcpy(memory->data(), buckets_, num_buckets_ * sizeof(Bucket));
  memory_ = *std::move(memory);
  buckets_ = reinterpret_cast<Bucket*>(memory_.data());
  return absl::OkStatus();
}

void HashIndex::Grow() {
  if (capacity_ == promised_capacity_) return;
  const uint32_t old_num_buckets = num_buckets_;
  memory_.Extend(promised_buckets_ * sizeof(Bucket));
  // Written before it is read: a page that is read first is a shared one of
  // zeros, and replacing that interrupts all threads of the process.
  memory_.WritePages(bytes(), promised_buckets_ * sizeof(Bucket));
  num_buckets_ = promised_buckets_;
  capacity_ = promised_capacity_;
  promise_.Return();
  Spread(old_num_buckets);
}

void HashIndex::Withdraw() {
  promised_buckets_ = num_buckets_;
  promised_capacity_ = capacity_;
  promise_.Return();
}

// A bucket's new place is never before its old one, so that back to front each
// is read before others are written there. The exceptions wait until the end:
// keys that had overflowed, near the first bucket, and those that would
// overflow the last one.
void HashIndex::Spread(uint32_t old_num_buckets) {
  struct Entry {
    int64_t key;
    uint32_t row;
  };
  std::vector<Entry> exceptions;
  for (uint32_t b = old_num_buckets; b-- > 0;) {
    const Bucket from = buckets_[b];
    buckets_[b].count = 0;
    buckets_[b].overflow = 0;
    for (int i = 0; i < from.count; ++i) {
      const uint32_t home = BucketOf(HashKey(from.keys[i]));
      if (home < b || !PutUpwards(home, from.keys[i], from.rows[i])) {
        exceptions.push_back({from.keys[i], from.rows[i]});
      }
    }
  }
  size_ -= exceptions.size();
  for (const Entry& entry : exceptions) {
    Insert(HashKey(entry.key), entry.key, entry.row);
  }
}

bool HashIndex::PutUpwards(uint32_t home, int64_t key, uint32_t row) {
  uint32_t b = home;
  while (b < num_buckets_ && buckets_[b].count == kBucketPlaces) ++b;
  if (b == num_buckets_) return false;
  for (uint32_t passed = home; passed < b; ++passed) {
    if (buckets_[passed].overflow != kStuck) ++buckets_[passed].overflow;
  }
  Append(&buckets_[b], key, row);
  return true;
}

uint64_t HashIndex::NewSalt() {
  static std::atomic<uint64_t> next{(uint64_t{std::random_device()()} << 32) ^
                                    std::random_device()()};
  return MixBits(next.fetch_add(1, std::memory_order_relaxed)) | 1;
}

void HashIndex::Clear() {
  salt_ = NewSalt();
  promise_.Return();
  memory_ = MemoryBlock();
  buckets_ = &empty_;
  num_buckets_ = promised_buckets_ = 1;
  size_ = 0;
  capacity_ = promised_capacity_ = 0;
}

absl::Status HashIndex::ClearFor(int64_t keys) {
  if (capacity_ == 0 || keys == 0 || capacity_ != promised_capacity_ ||
      BucketsFor(keys) != num_buckets_) {
    Clear();
    return Reserve(keys);
  }
  salt_ = NewSalt();
  std::memset(memory_.data(), 0, bytes());
  size_ = 0;
  return absl::OkStatus();
}

uint32_t HashIndex::FindPast(const Bucket* bucket, int64_t key) const {
  // Where all counts are stuck the search ends after one round.
  for (uint32_t passed = 0; passed < num_buckets_; ++passed) {
    bucket = Next(bucket);
    const uint32_t row = FindIn(*bucket, key);
    if (row != kNoRow || bucket->overflow == 0) return row;
  }
  return kNoRow;
}

uint32_t HashIndex::Insert(uint64_t hash, int64_t key, uint32_t row) {
  uint32_t b = BucketOf(hash);
  while (buckets_[b].count == kBucketPlaces) {
    uint8_t& overflow = buckets_[b].overflow;
    if (overflow != kStuck) ++overflow;
    b = Next(b);
  }
  Append(&buckets_[b], key, row);
  ++size_;
  return row;
}

uint32_t HashIndex::Erase(uint64_t hash, int64_t key) {
  const uint32_t home = BucketOf(hash);
  uint32_t b = home;
  uint32_t places = PlacesOf(buckets_[b], key);
  for (uint32_t passed = 0; places == 0; ++passed) {
    if (buckets_[b].overflow == 0 || passed == num_buckets_) return kNoRow;
    b = Next(b);
    places = PlacesOf(buckets_[b], key);
  }
  for (uint32_t on_path = home; on_path != b; on_path = Next(on_path)) {
    uint8_t& overflow = buckets_[on_path].overflow;
    if (overflow != kStuck) --overflow;
  }
  Bucket& bucket = buckets_[b];
  const int place = __builtin_ctz(places);
  const int last = bucket.count - 1;
  const uint32_t row = bucket.rows[place];
  bucket.keys[place] = bucket.keys[last];
  bucket.rows[place] = bucket.rows[last];
  bucket.count = static_cast<uint8_t>(last);
  --size_;
  return row;
}

HashIndex::Probes HashIndex::CountProbes() const {
  Probes probes;
  for (uint32_t b = 0; b < num_buckets_; ++b) {
    for (int i = 0; i < buckets_[b].count; ++i) {
      const uint32_t home = BucketOf(HashKey(buckets_[b].keys[i]));
      const int64_t probe =
          1 + (b >= home ? b - home : int64_t{b} + num_buckets_ - home);
      probes.total += probe;
      probes.longest = std::max(probes.longest, probe);
    }
  }
  return probes;
}

}  // namespace tfembed
