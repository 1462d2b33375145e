#ifndef TFEMBED_CORE_TABLE_HASH_INDEX_H_
#define TFEMBED_CORE_TABLE_HASH_INDEX_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "cc/core/simd/hash_bucket.h"
#include "cc/core/support/chunk_pool.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/memory_promise.h"

namespace tfembed {

// Maps keys to row numbers: the index of one stripe.
//
//   bucket, one cache line
//   +------+------+------+------+------+----+----+----+----+----+-+-+--+
//   | key0 | key1 | key2 | key3 | key4 |row0|row1|row2|row3|row4|c|o|  |
//   +------+------+------+------+------+----+----+----+----+----+-+-+--+
//   c: live entries, always the first c          o: keys pushed on past here
//
// A key is in the bucket of its hash or, if that was full, in the next one with
// a free place (after the last bucket comes the first). Each full bucket that
// it passed counts it in `o`, so that
//   - a search ends at the first bucket with o == 0: mostly the first, one
//     miss;
//   - a removal decrements the counts and leaves no tombstone: removals and
//     inserts do not slow down later searches;
//   - no key value is reserved for "empty".
// `o` saturates at 255; searches are longer then, but never wrong.
//
// Buckets are selected by multiplication (BucketOf), in the order of salted
// hashes, so that an index can grow by any factor, here 1.5, and growing reads
// and writes the buckets sequentially. Each index has its own random salt:
// otherwise keys in the order of another index, as from an export, would all
// belong into the first buckets of a growing index, and inserting n of them
// would take n^2 steps.
//
// At most 74 % of the places are used, 49 % after growing: 17.3 to 26 bytes a
// key, 21.3 on average over stripes that grow at different times. (Up to 84 %
// was 3 bytes less and a third slower: one key in seven then lies past its
// first bucket. Growing by 1.3 was 1.5 bytes less and an insert a fifth
// slower.) It grows in place, back to front: a larger copy each time would take
// several times its memory from the system, which was most of what inserts
// cost.
//
// So the buckets are in chunks of 64 KiB, which the indexes of a table take
// from one pool: an index grows by adding chunks, and the chunks are on huge
// pages though few indexes are as large as a huge page. All of the last chunk
// is used, at about 1 byte per key. An index of less than a chunk has its own
// block, and so has an index of up to two chunks that its usual keys fill.
//
// Not thread-safe; any number of threads may call the const methods at once.
class HashIndex {
 public:
  static constexpr uint32_t kNoRow = 0xffffffff;
  static constexpr int kBucketPlaces = HashBucket::kPlaces;
  static_assert(kChunkBuckets * sizeof(HashBucket) == ChunkPool::kChunkBytes);

  using Bucket = HashBucket;

  HashIndex() : HashIndex(NewSalt()) {}
  explicit HashIndex(uint64_t salt) : salt_(salt) {}  // Odd. For tests.
  HashIndex(const HashIndex&) = delete;
  HashIndex& operator=(const HashIndex&) = delete;
  ~HashIndex() { ReturnChunks(0); }

  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  int64_t promised_capacity() const { return promised_capacity_; }
  // The bytes of memory that was written.
  int64_t bytes() const {
    return capacity_ == 0 ? 0 : num_buckets_ * int64_t{sizeof(Bucket)};
  }

  // Sets a phase in [0, 1), before the first Reserve: indexes that fill equally
  // grow at different times where their phases differ.
  void set_growth_phase(double phase) { growth_phase_ = phase; }

  // Sets how many keys are hardly ever exceeded: the index does not grow
  // beyond what they need before there are more.
  void set_usual_keys(int64_t keys) { usual_keys_ = keys; }

  // The pool of the indexes that fill together; else each has its own. To be
  // set before the first Reserve.
  void set_pool(std::shared_ptr<ChunkPool> pool) { pool_ = std::move(pool); }

  // Makes capacity() at least `keys`. ResourceExhausted leaves all as it was.
  absl::Status Reserve(int64_t keys);

  // The same in two parts: all that can fail, and then the work. In between the
  // index is as it was, promised_capacity() at least `keys`, and the memory is
  // promised to it.
  absl::Status Promise(int64_t keys);
  void Grow();
  void Withdraw();  // Gives back promised memory that was not used.

  // Forgets all keys and gives the memory back; the salt is another one then.
  void Clear();

  // The same, with room for `keys` keys: in the memory that is there if the
  // index would take as much. ResourceExhausted: it has been cleared.
  absl::Status ClearFor(int64_t keys);

  // The bucket where a search for a hash begins; it stays valid until the next
  // Reserve, Promise, Grow or Clear.
  const Bucket* Home(uint64_t hash) const { return At(BucketOf(hash)); }

  // Searches one bucket alone: kNoRow with bucket.overflow == 0 says that the
  // key is nowhere; with overflow != 0 that FindPast(hash, key) has to go on.
  static uint32_t FindIn(const Bucket& bucket, int64_t key) {
    const uint32_t places = PlacesOf(bucket, key);
    return places != 0 ? bucket.rows[__builtin_ctz(places)] : kNoRow;
  }
  uint32_t FindPast(uint64_t hash, int64_t key) const;

  // Asks for the buckets that an insert goes on to, of a key that is not in
  // this one: to look for it there, or to put it there. (Half of the full
  // buckets were never passed; two keys that passed one mostly filled the
  // next.) Past a chunk's end it asks in vain.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void PrefetchPast(const Bucket& bucket) {
    if (bucket.overflow == 0 && bucket.count < kBucketPlaces) return;
    PrefetchBucket(&bucket + 1);
    if (bucket.overflow > 1) PrefetchBucket(&bucket + 2);
  }

  // The row of a key, or kNoRow. REQUIRES, here and below: hash is
  // HashKey(key).
  uint32_t Find(uint64_t hash, int64_t key) const {
    const Bucket* home = Home(hash);
    const uint32_t row = FindIn(*home, key);
    if (row != kNoRow || home->overflow == 0) return row;
    return FindPast(hash, key);
  }

  // The row of a key; new_row() where it is new. REQUIRES: size() < capacity().
  template <typename NewRow>
  uint32_t FindOrInsert(uint64_t hash, int64_t key, NewRow new_row) {
    Bucket& home = *At(BucketOf(hash));
    uint32_t row = FindIn(home, key);
    if (row != kNoRow) return row;
    if (home.overflow != 0) {
      row = FindPast(hash, key);
      if (row != kNoRow) return row;
    }
    row = new_row();
    if (home.count == kBucketPlaces) return Insert(hash, key, row);
    Append(&home, key, row);
    ++size_;
    return row;
  }

  // REQUIRES: the key is not there and size() < capacity(). Returns `row`.
  uint32_t Insert(uint64_t hash, int64_t key, uint32_t row);

  // Removes a key and returns its row; kNoRow where it is not there.
  uint32_t Erase(uint64_t hash, int64_t key);

  // Notes where a search begins, for as long as a Home stays valid.
  void Show(int stripe, StripeIndexes* indexes) const {
    indexes->salts[stripe] = salt_;
    indexes->chunks[stripe] = chunks_.data();
    indexes->num_buckets[stripe] = num_buckets_;
  }

  int64_t num_buckets() const { return num_buckets_; }

  // Buckets that are read to find each key once, and the most for one key; of
  // the keys in buckets [begin, end), or of all.
  struct Probes {
    int64_t total = 0;
    int64_t longest = 0;
  };
  Probes CountProbes(int64_t begin, int64_t end) const;
  Probes CountProbes() const { return CountProbes(0, num_buckets_); }

  // Calls visit(key, row) for the keys in buckets [begin, end), of which there
  // are at most (end - begin) * kBucketPlaces.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const {
    for (int64_t b = begin; b < end; ++b) {
      const Bucket& bucket = *At(b);
      for (int i = 0; i < bucket.count; ++i) {
        visit(bucket.keys[i], bucket.rows[i]);
      }
    }
  }

 private:
  static uint64_t NewSalt();

  uint32_t BucketOf(uint64_t hash) const {
    return static_cast<uint32_t>(tfembed::BucketOf(hash, salt_, num_buckets_));
  }

  Bucket* At(uint64_t b) const { return BucketAt(chunks_.data(), b); }

  uint32_t Next(uint32_t b) const { return b + 1 == num_buckets_ ? 0 : b + 1; }

  // The smallest number of buckets in this index's series that holds `keys`,
  // and the same before it fills its last chunk.
  int64_t BucketsFor(int64_t keys) const;
  int64_t GrownBuckets(int64_t keys) const;

  // Has memory for `num_buckets` buckets; the contents of those that there were
  // stay. ResourceExhausted leaves all as it was.
  absl::Status Allocate(int64_t num_buckets);
  // The same in a block of its own.
  absl::Status AllocateBlock(int64_t num_buckets);
  static bool IsOfBlock(int64_t num_buckets) {
    return num_buckets % kChunkBuckets != 0;
  }

  // Copies the buckets to other memory: parts of a chunk's size.
  void CopyTo(Bucket* const* parts) const;

  // Whether chunks_ are of the pool.
  bool IsInChunks() const {
    return block_.data() == nullptr && chunks_[0] != &empty_;
  }

  // How many buckets have memory.
  int64_t HeldBuckets() const {
    return IsInChunks() ? chunks_.size() * int64_t{kChunkBuckets}
                        : block_.size() / int64_t{sizeof(Bucket)};
  }

  // Gives the chunks back that are more than `bytes` bytes need.
  void ReturnChunks(int64_t bytes);

  // Moves the entries of the first `old_num_buckets` buckets to their places
  // among num_buckets_.
  void Spread(uint32_t old_num_buckets);

  // REQUIRES: the bucket is not full.
  static void Append(Bucket* bucket, int64_t key, uint32_t row) {
    bucket->keys[bucket->count] = key;
    bucket->rows[bucket->count] = row;
    ++bucket->count;
  }

  // Puts an entry into bucket `home` or the next one with a place; false, with
  // nothing changed, where there is none before the last bucket's end.
  bool PutUpwards(uint32_t home, int64_t key, uint32_t row);

  uint64_t salt_;
  double growth_phase_ = 0;
  int64_t usual_keys_ = std::numeric_limits<int64_t>::max();
  std::shared_ptr<ChunkPool> pool_;
  // Either chunks_ are chunks of the pool, or there is one: block_, or empty_,
  // which stands in for the memory of an empty index.
  Bucket empty_ = {};
  MemoryBlock block_;
  std::vector<Bucket*> chunks_ = {&empty_};
  uint32_t num_buckets_ = 1;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
  // After Grow(), for which the memory is held.
  uint32_t promised_buckets_ = 1;
  int64_t promised_capacity_ = 0;
  MemoryPromise promise_;  // Until Grow().
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_HASH_INDEX_H_
