// Batches of writes: room for their new keys first, then their rows, in parts
// under the locks of all stripes that they write to; and removals. Readers see
// all of a part or nothing. In a part each stripe is one task. A key costs two
// misses, its bucket and its row: the keys of a block are all looked for before
// the first of its rows is written, as in lookups (table_stripe.h), and the
// next block's buckets are asked for meanwhile.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/row_writes.h"
#include "cc/core/table/table_bound.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

// Below this many keys waking threads costs more than it saves.
constexpr int64_t kParallelFrom = 1024;

absl::Status NoMemoryToCount(int64_t keys) {
  return absl::ResourceExhaustedError(
      absl::StrCat("No memory to note which rows a batch of ", keys,
                   " keys writes; none of them was written. Split it."));
}

Executor* ForBatch(int64_t keys, Executor* executor) {
  return keys < kParallelFrom ? nullptr : executor;
}

// Calls visit(part) for the parts of a batch of n keys, in order.
template <class Visit>
void ForEachPart(int64_t n, Visit visit) {
  constexpr int64_t kMost = EmbeddingTable::kKeysAtOnce;
  for (int64_t begin = 0; begin < n; begin += kMost) {
    visit(BatchPart{begin, std::min(n, begin + kMost)});
  }
}

constexpr int64_t kLookAhead = 16;  // Keys whose buckets are under way.

// Counts distinct hashes, up to so many. In a stripe that grows this takes a
// third of the time of sorting them.
class DistinctHashes {
 public:
  // Throws std::bad_alloc.
  explicit DistinctHashes(int64_t most) {
    while ((int64_t{1} << log_places_) < 2 * most) ++log_places_;
    places_.resize(int64_t{1} << log_places_);
  }

  void Add(uint64_t hash) {
    if (hash == kNone) {
      has_none_ = true;
      return;
    }
    uint64_t at = hash * salt_ >> (64 - log_places_);
    while (places_[at] != kNone) {
      if (places_[at] == hash) return;
      at = (at + 1) & (places_.size() - 1);
    }
    places_[at] = hash;
    ++size_;
  }

  int64_t size() const { return size_ + has_none_; }

 private:
  static constexpr uint64_t kNone = 0;

  // Odd, and known to nobody who may choose keys.
  static uint64_t Salt() {
    static const uint64_t salt =
        (uint64_t{std::random_device()()} << 32 | std::random_device()()) | 1;
    return salt;
  }

  const uint64_t salt_ = Salt();
  int log_places_ = 1;
  std::vector<uint64_t> places_;
  int64_t size_ = 0;
  bool has_none_ = false;  // That hash itself was added.
};

// Where the keys begin that stay when all are written in order to a table that
// has room for `max_size`: those behind it are no more distinct ones.
int64_t FirstThatStays(absl::Span<const int64_t> keys, int64_t max_size) {
  const int64_t n = keys.size();
  if (n <= max_size) return 0;
  std::vector<std::pair<int64_t, int64_t>> places(n);  // Key, position.
  for (int64_t i = 0; i < n; ++i) places[i] = {keys[i], i};
  std::sort(places.begin(), places.end());
  std::vector<int64_t> last;  // Where each key comes last.
  for (int64_t i = 0; i < n; ++i) {
    if (i + 1 < n && places[i + 1].first == places[i].first) continue;
    last.push_back(places[i].second);
  }
  if (static_cast<int64_t>(last.size()) <= max_size) return 0;
  std::nth_element(last.begin(), last.begin() + max_size - 1, last.end(),
                   std::greater<int64_t>());
  return last[max_size - 1];
}

}  // namespace

absl::Status EmbeddingTable::Upsert(absl::Span<const int64_t> keys,
                                    const void* values, Executor* executor) {
  return WriteRows(keys, {RowWrites::Kind::kUpsert, values, value_bytes()},
                   executor);
}

absl::Status EmbeddingTable::Accum(absl::Span<const int64_t> keys,
                                   const void* values, const void* old_values,
                                   const bool* exists, Executor* executor) {
  if (!type_.has_addition()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Rows of ", type_.name(), " cannot be added to; upsert them."));
  }
  return WriteRows(
      keys,
      {RowWrites::Kind::kAccum, values, value_bytes(), exists, old_values},
      executor);
}

absl::Status EmbeddingTable::Import(absl::Span<const int64_t> keys,
                                    int64_t width, const float* full_rows,
                                    Executor* executor) {
  return WriteRows(
      keys,
      {RowWrites::Kind::kImport, full_rows, width * RowLayout::kWordBytes},
      executor);
}

// REQUIRES: the caller holds batches_.
absl::Status EmbeddingTable::CheckFullWidth(int64_t width) const {
  if (width == layout_.width()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "A full row has ", layout_.width(), " words; got ", width,
      ". An optimizer may have been attached since: read the rows again."));
}

absl::Status EmbeddingTable::WriteRows(absl::Span<const int64_t> keys,
                                       RowWrites writes, Executor* executor) {
  // Rows that are brought in from elsewhere are no step of the table's own.
  writes.now = writes.kind == RowWrites::Kind::kImport ? Now() : Tick();
  writes.rounding = Rounding(writes.now);
  if (keys.empty()) return absl::OkStatus();
  if (max_size_ > 0) return WriteBounded(keys, writes, executor);
  const ReaderLock batch(&batches_);
  if (WriteInOrder(keys, writes, executor)) return absl::OkStatus();
  return WriteHeld(keys, writes, /*bound=*/nullptr, executor);
}

// Whether rows of a batch of n go past the caches: new ones, whose memory
// nobody has read yet, and others as far as that is no slower (simd/write.inc).
// Rows that are added to are read first, and then written as fast the ordinary
// way. REQUIRES: the caller holds batches_.
bool EmbeddingTable::Streams(const RowWrites& writes, int64_t n) const {
  if (writes.kind != RowWrites::Kind::kUpsert &&
      writes.kind != RowWrites::Kind::kImport) {
    return false;
  }
  // Rows begin at lines if their width is one of whole lines.
  const int64_t row_bytes = layout_.width() * RowLayout::kWordBytes;
  return !touches_ && row_bytes % kLineBytes == 0 &&
         StreamsRows(writes.bytes, n);
}

// All that can fail comes before `bound`, where there is one, makes room.
absl::Status EmbeddingTable::WriteHeld(absl::Span<const int64_t> keys,
                                       RowWrites writes, Bound* bound,
                                       Executor* executor) {
  executor = ForBatch(keys.size(), executor);
  stripes_.any().AssertReaderHeld();  // By batches_.
  writes.streams = Streams(writes, keys.size());
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, executor);
  if (!partition.ok()) return partition.status();

  absl::Status status;
  if (writes.is_trained()) {
    status = CheckTrained(
        {writes.bytes / static_cast<int64_t>(sizeof(float)), writes.rule});
  }
  if (writes.kind == RowWrites::Kind::kImport) {
    status = CheckFullWidth(writes.bytes / RowLayout::kWordBytes);
  }
  std::unique_ptr<float*[]> written;  // For WriteGroup.
  if (touches_ && eviction_->counts()) {
    written.reset(new (std::nothrow) float*[keys.size()]);
    if (written == nullptr) return NoMemoryToCount(keys.size());
  }
  std::unique_ptr<float[]> scratch;
  if (writes.NeedsScratch(type_)) {
    scratch.reset(new (std::nothrow) float[kNumStripes * ScratchFloats()]);
    if (scratch == nullptr) return NoMemoryToCount(keys.size());
    writes.scratch = scratch.get();
  }
  if (!status.ok()) return status;
  const int64_t rows = bound == nullptr ? keys.size() : 0;
  const absl::StatusOr<int64_t> fresh = store_->Promise(rows);
  if (!fresh.ok()) return fresh.status();
  Reservations reservations;
  StripeSetLocks locks(stripes_, partition->stripes());
  status = ReserveGroups(*partition, writes, bound, *fresh, executor, &locks,
                         &reservations);
  if (status.ok()) {
    if (bound != nullptr) {
      locks.Unlock();
      bound->MakeRoom();
    }
    WriteParts(*partition, writes, written.get(), executor, &locks,
               reservations);
  }
  store_->Withdraw(rows);
  return status;
}

void EmbeddingTable::WriteParts(const KeyPartition& partition,
                                const RowWrites& writes, float** written,
                                Executor* executor, StripeSetLocks* locks,
                                const Reservations& reservations) {
  std::array<int64_t, kNumStripes> num_written = {};
  ForEachPart(partition.size(), [&](const BatchPart& part) {
    const bool is_last = part.end == partition.size();
    locks->Lock();  // Mostly held already by the first part.
    ParallelFor(executor, kNumStripes, [&](int64_t i) {
      const int s = reservations.order[i];
      if (reservations.keys[s] < 0) return;
      TableStripe& stripe = stripes_[s];
      stripe.mutex().AssertHeld();
      stripes_.any().AssertReaderHeld();
      if (part.begin == 0) stripe.Grow();
      float** const first =
          written == nullptr ? nullptr : &written[partition.begin(s)];
      float** const next = first == nullptr ? nullptr : first + num_written[s];
      RowWrites own = writes;
      if (own.scratch != nullptr) own.scratch += s * ScratchFloats();
      num_written[s] +=
          WriteGroup(partition.group(s, part), own, next, &stripe);
      if (!is_last) return;
      // Once each, repeated or not.
      std::sort(first, first + num_written[s]);
      float** const end = std::unique(first, first + num_written[s]);
      for (float** row = first; row < end; ++row) NoteWrite(writes, *row);
      stripe.Release(reservations.keys[s]);
    });
    locks->Unlock();
  });
}

// Some keys of a group, and the rows that they have.
struct EmbeddingTable::GroupBlock {
  KeyGroup keys;           // Up to kFindKeys.
  int64_t num_ahead = 0;   // So many more keys follow in the group.
  FindBlock find;          // With their homes.
  float* rows[kFindKeys];  // Where a given row goes; null: nowhere.
  bool is_new[kFindKeys];  // Such rows hold nothing yet.
};

int64_t EmbeddingTable::WriteGroup(const KeyGroup& group,
                                   const RowWrites& writes, float** written,
                                   TableStripe* stripe) {
  using Kind = RowWrites::Kind;
  const bool by_kernel = type_.is_float32() && (writes.kind == Kind::kUpsert ||
                                                writes.kind == Kind::kAccum);
  for (int64_t i = 0; i < std::min(WriteBlock::kGivenAhead, group.size); ++i) {
    AskForGiven(writes, group.positions[i]);
  }
  int64_t nan_rows = 0;
  int64_t num_written = 0;
  GroupBlock blocks[2];
  BeginBlock(group, 0, *stripe, &blocks[0]);
  for (int64_t i = 0; i < blocks[0].find.n; ++i) {
    PrefetchBucket(blocks[0].find.homes[i]);
  }
  for (int64_t begin = 0; begin < group.size; begin += kFindKeys) {
    GroupBlock& block = blocks[begin / kFindKeys % 2];
    GroupBlock& next = blocks[(begin / kFindKeys + 1) % 2];
    FindOrMakeRows(writes, stripe, &block);
    BeginBlock(group, begin + kFindKeys, *stripe, &next);
    nan_rows += by_kernel ? WriteByKernel(writes, block, next)
                          : WriteRowByRow(writes, block, next);
    const int64_t n = block.keys.size;
    for (int64_t i = 0; touches_ && i < n; ++i) {
      float* const row = block.rows[i];
      if (row == nullptr) continue;
      written != nullptr ? static_cast<void>(written[num_written++] = row)
                         : NoteWrite(writes, row);
    }
  }
  if (writes.streams) StreamedRows();
  nan_rows_.Add(nan_rows);
  return num_written;
}

void EmbeddingTable::NoteWrite(const RowWrites& writes, float* row) const {
  writes.kind == RowWrites::Kind::kImport ? TakeNote(writes.now, row)
                                          : Touch(writes.now, row);
}

// The keys of a group from `begin` on; none where it ends before.
void EmbeddingTable::BeginBlock(const KeyGroup& group, int64_t begin,
                                const TableStripe& stripe,
                                GroupBlock* block) const {
  begin = std::min(begin, group.size);
  const int64_t n = std::min(kFindKeys, group.size - begin);
  block->keys = {group.keys + begin, group.positions + begin, n};
  block->num_ahead = group.size - begin - n;
  block->find.keys = block->keys.keys;
  block->find.n = n;
  block->find.addresses = store_->addresses();
  block->find.rows = const_cast<const float**>(block->rows);
  for (int64_t i = 0; i < n; ++i) {
    block->find.homes[i] = stripe.index().Home(HashKey(block->keys.keys[i]));
  }
}

// In the order of the batch: of a new key that comes twice the first one makes
// the row, and the last one, which is written last, wins.
void EmbeddingTable::FindOrMakeRows(const RowWrites& writes,
                                    TableStripe* stripe, GroupBlock* block) {
  const KeyGroup& keys = block->keys;
  const bool accum = writes.kind == RowWrites::Kind::kAccum;
  FindBlock& find = block->find;
  find.floats_to_fetch = FloatsToFetch(writes);
  const int64_t num_unsettled = ActiveKernels().find_at_homes(&find);
  AskPastHomes(find, num_unsettled);
  std::fill_n(block->is_new, keys.size, false);
  for (int64_t j = 0; j < num_unsettled; ++j) {
    const int32_t i = find.unsettled[j];
    const int64_t key = keys.keys[i];
    const uint64_t hash = HashKey(key);
    const uint32_t row =
        writes.Inserts(keys.positions[i])
            ? stripe->FindOrInsert(hash, key, store_.get(), &block->is_new[i])
            : stripe->Find(hash, key);
    block->rows[i] = row == HashIndex::kNoRow ? nullptr : store_->Row(row);
    if (!block->is_new[i]) continue;
    if (!admits_all_) stripe->mutable_filter()->Forget(hash, key);
    if (writes.kind != RowWrites::Kind::kImport) FillNewTail(block->rows[i]);
  }
  // A row that is there is added to only where the caller knew of it.
  for (int64_t i = 0; accum && i < keys.size; ++i) {
    if (!block->is_new[i] && !writes.exists[keys.positions[i]]) {
      block->rows[i] = nullptr;
    }
  }
}

// The floats to prefetch of each row that is found, before the row is written;
// not the floats that WriteBlock prefetches later, or that are not read at all.
int64_t EmbeddingTable::FloatsToFetch(const RowWrites& writes) const {
  if (touches_) return layout_.width();
  const bool unread = writes.kind == RowWrites::Kind::kUpsert &&
                      writes.streams && ActiveKernels().streams_old_rows;
  return unread || dim_ > WriteBlock::kFewFloats ? 0 : dim_;
}

int64_t EmbeddingTable::WriteByKernel(const RowWrites& writes,
                                      const GroupBlock& block,
                                      const GroupBlock& next) const {
  WriteBlock write;
  write.rows = block.rows;
  write.is_new = block.is_new;
  write.positions = block.keys.positions;
  write.n = block.keys.size;
  write.num_ahead = block.num_ahead;
  write.given = static_cast<const float*>(writes.rows);
  write.old = static_cast<const float*>(writes.old_rows);
  write.dim = dim_;
  write.streams = writes.streams;
  write.next_homes = next.find.homes;
  write.num_next = next.find.n;
  const Kernels& kernels = ActiveKernels();
  if (writes.kind == RowWrites::Kind::kUpsert) return kernels.copy_rows(write);
  kernels.add_rows(write);
  return 0;
}

void EmbeddingTable::AskForGiven(const RowWrites& writes,
                                 uint32_t position) const {
  const int64_t words =
      (writes.bytes + RowLayout::kWordBytes - 1) / RowLayout::kWordBytes;
  PrefetchRow(writes.row(position), words);
  if (writes.old_rows != nullptr) PrefetchRow(writes.old_row(position), words);
}

int64_t EmbeddingTable::WriteRowByRow(const RowWrites& writes,
                                      const GroupBlock& block,
                                      const GroupBlock& next) const {
  using Kind = RowWrites::Kind;
  const KeyGroup& keys = block.keys;
  int64_t nan_rows = 0;
  for (int64_t i = 0; i < keys.size; ++i) {
    constexpr int64_t kAhead = WriteBlock::kRowsAhead;
    if (i + kAhead < keys.size && block.rows[i + kAhead] != nullptr) {
      PrefetchRow(block.rows[i + kAhead], dim_);
    }
    if (i + WriteBlock::kGivenAhead < keys.size + block.num_ahead) {
      AskForGiven(writes, keys.positions[i + WriteBlock::kGivenAhead]);
    }
    if (i < next.find.n) PrefetchBucket(next.find.homes[i]);
    float* const row = block.rows[i];
    if (row == nullptr) continue;
    const uint32_t position = keys.positions[i];
    const char* const from = writes.row(position);
    if (writes.kind == Kind::kUpsert) nan_rows += type_.HasNan(from, dim_);
    if (writes.is_trained()) {
      WriteTrainedRow(writes, position, keys.keys[i], block.is_new[i], row);
    } else if (writes.kind == Kind::kAccum && !block.is_new[i]) {
      AddValue(writes, position, keys.keys[i], row);
    } else if (writes.streams && block.is_new[i]) {
      StreamRow(from, row, writes.bytes);
    } else {
      CopyBytes(from, row, writes.bytes);
    }
  }
  return nan_rows;
}

void EmbeddingTable::AddValue(const RowWrites& writes, uint32_t position,
                              int64_t key, float* row) const {
  const char* const from = writes.row(position);
  const char* const old =
      writes.old_rows == nullptr ? nullptr : writes.old_row(position);
  if (!writes.rounding.by_chance()) {
    old == nullptr ? type_.Add(from, row, dim_)
                   : type_.AddChange(from, old, row, dim_);
    return;
  }
  float* const sum = writes.scratch;
  float* const added = sum + dim_;
  type_.ToFloats(row, sum, dim_);
  type_.ToFloats(from, added, dim_);
  AddRow(added, sum, dim_);
  if (old != nullptr) {
    type_.ToFloats(old, added, dim_);
    for (int64_t c = 0; c < dim_; ++c) sum[c] -= added[c];
  }
  writes.rounding.Round(sum, dim_, key, position, row);
}

// `fresh_bytes`: what all keys need if they are new, but for what `bound` has
// been promised. Where it fails nothing is reserved.
absl::Status EmbeddingTable::ReserveGroups(
    const KeyPartition& partition, const RowWrites& writes, const Bound* bound,
    int64_t fresh_bytes, Executor* executor, StripeSetLocks* locks,
    Reservations* reservations) {
  // Mostly there is room, and memory, even if every key were new.
  if (reservations->memory.AskForMore(fresh_bytes)) {
    locks->Lock();
    const int num_short = PromiseFromRoom(partition, reservations);
    if (num_short == 0) return absl::OkStatus();
    locks->Unlock();
    const absl::Status status =
        ReserveCounted(partition, writes, bound, num_short, executor,
                       reservations)
            .status();
    if (!absl::IsResourceExhausted(status)) return status;
    ReleaseGroups(reservations);
  }
  std::iota(reservations->order.begin(), reservations->order.end(), 0);
  const absl::StatusOr<int64_t> rows = ReserveCounted(
      partition, writes, bound, kNumStripes, executor, reservations);
  absl::Status status = rows.status();
  if (rows.ok()) {
    status =
        reservations->memory.Ask(std::min(fresh_bytes, store_->BytesOf(*rows)));
  }
  if (!status.ok()) ReleaseGroups(reservations);
  return status;
}

void EmbeddingTable::ReleaseGroups(Reservations* reservations) {
  reservations->memory.Return();
  for (int s = 0; s < kNumStripes; ++s) {
    const int64_t keys = std::exchange(reservations->keys[s], -1);
    if (keys < 0) continue;
    const StripeLock lock(stripes_, stripes_[s]);
    stripes_[s].Release(keys);
  }
}

// Reserves in the stripes that have room if all their keys are new; returns how
// many others come first in the order.
int EmbeddingTable::PromiseFromRoom(const KeyPartition& partition,
                                    Reservations* reservations) {
  int num_short = 0;
  int end = kNumStripes;
  for (int s = 0; s < kNumStripes; ++s) {
    const int64_t keys = partition.group(s).size;
    if (keys > 0) {
      stripes_[s].mutex().AssertHeld();
      if (!stripes_[s].PromiseFromRoom(keys)) {
        reservations->order[num_short++] = s;
        continue;
      }
      reservations->keys[s] = keys;
    }
    reservations->order[--end] = s;
  }
  return num_short;
}

// Reserves in the first stripes of the order; returns how many of their keys
// need memory for a row.
absl::StatusOr<int64_t> EmbeddingTable::ReserveCounted(
    const KeyPartition& partition, const RowWrites& writes, const Bound* bound,
    int num_stripes, Executor* executor, Reservations* reservations) {
  std::array<absl::Status, kNumStripes> statuses;
  std::array<int64_t, kNumStripes> fresh_rows = {};
  ParallelFor(executor, num_stripes, [&](int64_t i) {
    const int s = reservations->order[i];
    const KeyGroup group = partition.group(s);
    if (group.size == 0) return;
    const int64_t leaving = bound == nullptr ? 0 : bound->leaving(s);
    statuses[i] = ReserveMissing(group, writes, leaving, &stripes_[s],
                                 &reservations->keys[s], &fresh_rows[i]);
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return std::accumulate(fresh_rows.begin(), fresh_rows.end(), int64_t{0});
}

// The places of `leaving` keys will be free.
absl::Status EmbeddingTable::ReserveMissing(
    const KeyGroup& group, const RowWrites& writes, int64_t leaving,
    TableStripe* stripe, int64_t* reserved, int64_t* fresh_rows) {
  const StripeLock lock(stripes_, *stripe);
  int64_t new_keys = 0;
  try {
    new_keys = CountMissing(group, writes, *stripe);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("No memory to count the new ones among ", group.size,
                     " keys of a batch; none of them was written. Split it."));
  }
  const int64_t places = std::max<int64_t>(0, new_keys - leaving);
  *fresh_rows = stripe->CountFreshRows(places);
  absl::Status status = stripe->Promise(places);
  if (status.ok()) *reserved = places;
  return status;
}

// How many distinct keys are really new, so that neither repeats nor keys that
// are there make a table grow. Throws std::bad_alloc.
int64_t EmbeddingTable::CountMissing(const KeyGroup& group,
                                     const RowWrites& writes,
                                     const TableStripe& stripe) {
  DistinctHashes missing(group.size);
  for (int64_t i = 0; i < group.size; ++i) {
    const int64_t ahead = std::min(i + kLookAhead, group.size - 1);
    __builtin_prefetch(stripe.index().Home(HashKey(group.keys[ahead])));
    if (!writes.Inserts(group.positions[i])) continue;
    const uint64_t hash = HashKey(group.keys[i]);
    if (stripe.Find(hash, group.keys[i]) == HashIndex::kNoRow) {
      missing.Add(hash);
    }
  }
  return missing.size();
}

// Cuts an import down to what stays of it, and pins the batch. Throws
// std::bad_alloc.
absl::Status EmbeddingTable::PinWrites(Bound* bound, RowWrites* writes,
                                       absl::Span<const int64_t>* keys) const {
  if (writes->kind == RowWrites::Kind::kImport) {
    const int64_t begin = FirstThatStays(*keys, max_size_);
    writes->rows = writes->row(begin);
    keys->remove_prefix(begin);
  }
  if (writes->kind != RowWrites::Kind::kAccum) return bound->Pin(*keys);
  std::vector<int64_t> inserts;
  for (size_t i = 0; i < keys->size(); ++i) {
    if (writes->Inserts(i)) inserts.push_back((*keys)[i]);
  }
  return bound->Pin(*keys, inserts);
}

absl::Status EmbeddingTable::WriteBounded(absl::Span<const int64_t> keys,
                                          RowWrites writes,
                                          Executor* executor) {
  Bound bound(this, /*trains=*/false);
  absl::Status status;
  try {
    status = PinWrites(&bound, &writes, &keys);
  } catch (const std::bad_alloc&) {
    status = NoMemoryToPin(keys.size());
  }
  if (!status.ok()) return status;
  batches_.AssertHeld();  // By the bound.
  return WriteHeld(keys, writes, &bound, executor);
}

int64_t EmbeddingTable::RemoveKeys(absl::Span<const int64_t> keys,
                                   Executor* executor) {
  const int64_t n = keys.size();
  executor = ForBatch(n, executor);
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, executor);
  std::array<int64_t, kNumStripes> removed = {};
  ForEachPart(n, [&](const BatchPart& part) {
    if (!partition.ok()) {  // No memory to sort them: one by one, then.
      ExclusiveLocks locks(stripes_);
      removed[0] += EraseUnsorted(keys.subspan(part.begin, part.size()));
      return;
    }
    StripeSetLocks locks(stripes_, partition->stripes());
    locks.Lock();
    ParallelFor(executor, kNumStripes, [&](int64_t s) {
      const KeyGroup group = partition->group(s, part);
      if (group.size == 0) return;
      stripes_[s].mutex().AssertHeld();
      removed[s] += EraseGroup(group, &stripes_[s]);
    });
  });
  return std::accumulate(removed.begin(), removed.end(), int64_t{0});
}

int64_t EmbeddingTable::EraseUnsorted(absl::Span<const int64_t> keys) {
  int64_t removed = 0;
  for (const int64_t key : keys) {
    TableStripe& stripe = this->stripe(HashKey(key));
    stripe.mutex().AssertHeld();
    removed += stripe.Erase(HashKey(key), key);
  }
  return removed;
}

int64_t EmbeddingTable::EraseGroup(const KeyGroup& group, TableStripe* stripe) {
  int64_t removed = 0;
  for (int64_t i = 0; i < group.size; ++i) {
    const int64_t ahead = std::min(i + kLookAhead, group.size - 1);
    __builtin_prefetch(stripe->index().Home(HashKey(group.keys[ahead])));
    removed += stripe->Erase(HashKey(group.keys[i]), group.keys[i]);
  }
  return removed;
}

// Nothing goes while a table of bounded size counts what a batch inserts.
std::unique_lock<SharedMutex> EmbeddingTable::HoldIfBounded() {
  return max_size_ > 0 ? std::unique_lock<SharedMutex>(batches_)
                       : std::unique_lock<SharedMutex>();
}

void EmbeddingTable::Remove(absl::Span<const int64_t> keys,
                            Executor* executor) {
  const auto hold = HoldIfBounded();
  RemoveKeys(keys, executor);
}

void EmbeddingTable::Evict(absl::Span<const int64_t> keys, Executor* executor) {
  const auto hold = HoldIfBounded();
  evicted_.Add(RemoveKeys(keys, executor));
}

}  // namespace tfembed
