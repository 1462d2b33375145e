#include "cc/core/table/hash_index.h"

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
#include "cc/core/support/guard_memory.h"

namespace tfembed {
namespace {

constexpr double kMaxLoad = 0.74;
constexpr double kGrowth = 1.5;
constexpr uint8_t kStuck = std::numeric_limits<uint8_t>::max();
// An index that stops growing has a block of its own up to this size: the rest
// of its last chunk would be up to a half of it. (Larger blocks have more small
// pages than a processor remembers: searches took up to twice as long.)
constexpr int64_t kMostBlockBuckets = 2 * int64_t{kChunkBuckets};

struct SpreadEntry {
  int64_t key;
  uint32_t row;
};

// Room for so many exceptions of Spread is there before it changes anything.
// Random keys have a few dozen at most.
constexpr int64_t kExceptionsReserved = 1024;

// A thread's memory for the exceptions, kept from index to index.
std::vector<SpreadEntry>& Exceptions() {
  static thread_local std::vector<SpreadEntry> exceptions;
  return exceptions;
}

int64_t CapacityOf(int64_t num_buckets) {
  return static_cast<int64_t>(kMaxLoad * HashIndex::kBucketPlaces *
                              static_cast<double>(num_buckets));
}

// For so many keys.
int64_t LeastBuckets(int64_t keys) {
  auto buckets = static_cast<int64_t>(static_cast<double>(keys) /
                                      (kMaxLoad * HashIndex::kBucketPlaces));
  while (CapacityOf(buckets) < keys) ++buckets;
  return buckets;
}

}  // namespace

int64_t HashIndex::BucketsFor(int64_t keys) const {
  const int64_t buckets = std::max<int64_t>(GrownBuckets(keys), 1);
  if (buckets < kChunkBuckets) return buckets;
  const int64_t filled =
      (buckets + kChunkBuckets - 1) / kChunkBuckets * kChunkBuckets;
  if (keys > usual_keys_ || CapacityOf(filled) <= usual_keys_) return filled;
  const int64_t least = LeastBuckets(usual_keys_);
  return least < kMostBlockBuckets ? least : filled;
}

int64_t HashIndex::GrownBuckets(int64_t keys) const {
  const double needed = static_cast<double>(keys) / (kMaxLoad * kBucketPlaces);
  // Between the steps of the series kGrowth^(phase + k), k = 0, 1, 2 ...
  const double step = std::ceil(
      std::log(std::max(needed, 1.0)) / std::log(kGrowth) - growth_phase_);
  int64_t buckets =
      static_cast<int64_t>(std::ceil(std::pow(kGrowth, growth_phase_ + step)));
  while (CapacityOf(buckets) < keys) ++buckets;
  if (keys > usual_keys_ || CapacityOf(buckets) <= usual_keys_) return buckets;
  return LeastBuckets(usual_keys_);
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
  // An index that moves to other memory is there twice for a moment.
  const bool moves =
      num_buckets > HeldBuckets() && (!IsInChunks() || IsOfBlock(num_buckets));
  const int64_t moved = moves ? bytes() : 0;
  const int64_t fresh = num_buckets * int64_t{sizeof(Bucket)} + moved -
                        bytes() - promise_.bytes();
  absl::Status status = promise_.Ask(fresh);
  if (!status.ok()) return status;
  status = GuardMemory(
      [&] { return Allocate(num_buckets); },
      [] {
        return absl::ResourceExhaustedError(
            "The system refused memory for a list of a table's index.");
      });
  if (!status.ok()) {
    promise_.Return(fresh);
    return status;
  }
  promise_.Return(moved);  // Written now; the old memory has gone.
  promised_buckets_ = static_cast<uint32_t>(num_buckets);
  promised_capacity_ = CapacityOf(num_buckets);
  return absl::OkStatus();
}

absl::Status HashIndex::Allocate(int64_t num_buckets) {
  if (num_buckets <= HeldBuckets()) return absl::OkStatus();
  if (IsOfBlock(num_buckets)) return AllocateBlock(num_buckets);
  if (pool_ == nullptr) pool_ = std::make_shared<ChunkPool>();
  const bool moves = !IsInChunks();
  const int64_t most = (num_buckets + kChunkBuckets - 1) / kChunkBuckets;
  std::vector<Bucket*> fresh;  // From here on the lists take no more memory.
  fresh.reserve(most);
  chunks_.reserve(most);
  for (int64_t n = moves ? 0 : HeldBuckets(); n < num_buckets;
       n += kChunkBuckets) {
    absl::StatusOr<char*> chunk = pool_->Take();
    if (!chunk.ok()) {
      for (Bucket* taken : fresh) {
        pool_->Return(reinterpret_cast<char*>(taken), /*is_zero=*/true);
      }
      return chunk.status();
    }
    fresh.push_back(reinterpret_cast<Bucket*>(*chunk));
  }
  if (moves) {
    CopyTo(fresh.data());
    block_ = MemoryBlock();
    chunks_.clear();
  }
  chunks_.insert(chunks_.end(), fresh.begin(), fresh.end());
  return absl::OkStatus();
}

absl::Status HashIndex::AllocateBlock(int64_t num_buckets) {
  absl::StatusOr<MemoryBlock> block =
      MemoryBlock::Allocate(num_buckets * sizeof(Bucket));
  if (!block.ok()) return block.status();
  std::vector<Bucket*> parts;
  auto* const begin = reinterpret_cast<Bucket*>(block->data());
  for (int64_t b = 0; b < num_buckets; b += kChunkBuckets) {
    parts.push_back(begin + b);
  }
  CopyTo(parts.data());
  ReturnChunks(0);
  block_ = *std::move(block);
  chunks_ = std::move(parts);
  return absl::OkStatus();
}

void HashIndex::CopyTo(Bucket* const* parts) const {
  for (int64_t done = 0; done < bytes(); done += ChunkPool::kChunkBytes) {
    std::memcpy(*parts++, At(done / sizeof(Bucket)),
                std::min<int64_t>(ChunkPool::kChunkBytes, bytes() - done));
  }
}

void HashIndex::ReturnChunks(int64_t bytes) {
  if (!IsInChunks()) return;
  constexpr int64_t kBytes = ChunkPool::kChunkBytes;
  for (int64_t c = chunks_.size() - 1; c >= 0 && c * kBytes >= bytes; --c) {
    pool_->Return(reinterpret_cast<char*>(chunks_.back()),
                  /*is_zero=*/c * kBytes >= this->bytes());
    chunks_.pop_back();
  }
  if (chunks_.empty()) chunks_.push_back(&empty_);
}

void HashIndex::Grow() {
  if (capacity_ == promised_capacity_) return;
  Exceptions().reserve(kExceptionsReserved);  // Throws here or not at all.
  const uint32_t old_num_buckets = num_buckets_;
  num_buckets_ = promised_buckets_;
  capacity_ = promised_capacity_;
  // Written before they are read: a page that is read first is a shared one of
  // zeros, and replacing that interrupts all threads of the process.
  const bool is_mapped = HeldBuckets() >= kChunkBuckets;
  for (int64_t b = old_num_buckets; is_mapped && b < num_buckets_;) {
    const int64_t chunk_end = (b / kChunkBuckets + 1) * kChunkBuckets;
    const int64_t end = std::min(chunk_end, HeldBuckets());
    MemoryBlock::WritePages(reinterpret_cast<char*>(At(b)),
                            (end - b) * sizeof(Bucket));
    b = end;
  }
  promise_.Return();
  Spread(old_num_buckets);
}

void HashIndex::Withdraw() {
  promised_buckets_ = num_buckets_;
  promised_capacity_ = capacity_;
  promise_.Return();
  ReturnChunks(bytes());
}

// A bucket's new place is never before its old one, so that back to front each
// is read before others are written there. The exceptions wait until the end:
// keys that had overflowed, near the first bucket, and those that would
// overflow the last one.
void HashIndex::Spread(uint32_t old_num_buckets) {
  std::vector<SpreadEntry>& exceptions = Exceptions();
  exceptions.clear();
  // To lose keys is worse than to end the process.
  const auto keep = [&](int64_t key, uint32_t row) noexcept {
    exceptions.push_back({key, row});
  };
  for (uint32_t b = old_num_buckets; b-- > 0;) {
    Bucket& old = *At(b);
    const Bucket from = old;
    old.count = 0;
    old.overflow = 0;
    for (int i = 0; i < from.count; ++i) {
      const uint32_t home = BucketOf(HashKey(from.keys[i]));
      // Mostly there is room at home; all else is left out of this loop.
      if (home >= b && At(home)->count < kBucketPlaces) {
        Append(At(home), from.keys[i], from.rows[i]);
      } else if (home < b || !PutUpwards(home, from.keys[i], from.rows[i])) {
        keep(from.keys[i], from.rows[i]);
      }
    }
  }
  size_ -= exceptions.size();
  for (const SpreadEntry& entry : exceptions) {
    Insert(HashKey(entry.key), entry.key, entry.row);
  }
}

bool HashIndex::PutUpwards(uint32_t home, int64_t key, uint32_t row) {
  uint32_t b = home;
  while (b < num_buckets_ && At(b)->count == kBucketPlaces) ++b;
  if (b == num_buckets_) return false;
  for (uint32_t passed = home; passed < b; ++passed) {
    uint8_t& overflow = At(passed)->overflow;
    if (overflow != kStuck) ++overflow;
  }
  Append(At(b), key, row);
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
  ReturnChunks(0);
  block_ = MemoryBlock();
  chunks_.assign(1, &empty_);
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
  for (uint32_t b = 0; b < num_buckets_; b += kChunkBuckets) {
    std::memset(At(b), 0,
                std::min(kChunkBuckets, num_buckets_ - b) * sizeof(Bucket));
  }
  size_ = 0;
  return absl::OkStatus();
}

uint32_t HashIndex::FindPast(uint64_t hash, int64_t key) const {
  uint32_t b = BucketOf(hash);
  // Where all counts are stuck the search ends after one round.
  for (uint32_t passed = 0; passed < num_buckets_; ++passed) {
    b = Next(b);
    const Bucket& bucket = *At(b);
    const uint32_t row = FindIn(bucket, key);
    if (row != kNoRow || bucket.overflow == 0) return row;
  }
  return kNoRow;
}

uint32_t HashIndex::Insert(uint64_t hash, int64_t key, uint32_t row) {
  uint32_t b = BucketOf(hash);
  Bucket* bucket = At(b);
  while (bucket->count == kBucketPlaces) {
    if (bucket->overflow != kStuck) ++bucket->overflow;
    b = Next(b);
    bucket = At(b);
  }
  Append(bucket, key, row);
  ++size_;
  return row;
}

uint32_t HashIndex::Erase(uint64_t hash, int64_t key) {
  const uint32_t home = BucketOf(hash);
  uint32_t b = home;
  uint32_t places = PlacesOf(*At(b), key);
  for (uint32_t passed = 0; places == 0; ++passed) {
    if (At(b)->overflow == 0 || passed == num_buckets_) return kNoRow;
    b = Next(b);
    places = PlacesOf(*At(b), key);
  }
  for (uint32_t on_path = home; on_path != b; on_path = Next(on_path)) {
    uint8_t& overflow = At(on_path)->overflow;
    if (overflow != kStuck) --overflow;
  }
  Bucket& bucket = *At(b);
  const int place = __builtin_ctz(places);
  const int last = bucket.count - 1;
  const uint32_t row = bucket.rows[place];
  bucket.keys[place] = bucket.keys[last];
  bucket.rows[place] = bucket.rows[last];
  bucket.count = static_cast<uint8_t>(last);
  --size_;
  return row;
}

HashIndex::Probes HashIndex::CountProbes(int64_t begin, int64_t end) const {
  Probes probes;
  for (int64_t b = begin; b < end; ++b) {
    const Bucket& bucket = *At(b);
    for (int i = 0; i < bucket.count; ++i) {
      const uint32_t home = BucketOf(HashKey(bucket.keys[i]));
      const int64_t probe =
          1 + (b >= home ? b - home : int64_t{b} + num_buckets_ - home);
      probes.total += probe;
      probes.longest = std::max(probes.longest, probe);
    }
  }
  return probes;
}

}  // namespace tfembed
