#include "cc/core/table/string_keys.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/table/key_partition.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

constexpr int64_t kCellWords = 6;
// Below this many new strings waking threads costs more than it saves.
constexpr int64_t kParallelFrom = 256;

absl::Status NoMemoryForBatch(int64_t strings) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "No memory to add what is new in a batch of ", strings, " strings."));
}

// The strings of a batch that one stripe is to add: strings[at[position]].
struct NewStrings {
  absl::Span<const absl::string_view> strings;
  const uint32_t* at;
  const KeyGroup& group;

  absl::string_view operator[](int64_t i) const {
    return strings[at[group.positions[i]]];
  }
};

// The bytes that a string takes outside of its cell.
int64_t LongBytes(absl::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  return size > StringCell::kInlineBytes ? size : 0;
}

// Memory for all of them, whose cells need `cell_bytes` if no two are equal;
// where that is not there, for the distinct ones.
absl::Status AskFor(const NewStrings& added, int64_t cell_bytes,
                    MemoryPromise* memory) {
  const int64_t n = added.group.size;
  int64_t bytes = cell_bytes;
  for (int64_t i = 0; i < n; ++i) bytes += LongBytes(added[i]);
  if (memory->AskForMore(bytes)) return absl::OkStatus();
  std::vector<absl::string_view> texts;
  try {
    texts.reserve(n);
  } catch (const std::bad_alloc&) {
    return NoMemoryForBatch(n);
  }
  for (int64_t i = 0; i < n; ++i) texts.push_back(added[i]);
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  bytes = std::min<int64_t>(cell_bytes, texts.size() * sizeof(StringCell));
  for (absl::string_view text : texts) bytes += LongBytes(text);
  return memory->Ask(bytes);
}

constexpr int64_t kStringsPerTask = 4096;

int StripeOfKey(int64_t key) { return StripeOf(HashKey(key)); }

}  // namespace

absl::StatusOr<std::unique_ptr<StringKeys>> StringKeys::Create() {
  return Create(HashBytes);
}

absl::StatusOr<std::unique_ptr<StringKeys>> StringKeys::Create(Hash hash) {
  static_assert(sizeof(StringCell) == kCellWords * 4);
  auto store = RowStore::Create(kCellWords);
  if (!store.ok()) return store.status();
  return std::unique_ptr<StringKeys>(new StringKeys(hash, *std::move(store)));
}

StringKeys::StringKeys(Hash hash, std::unique_ptr<RowStore> store)
    : hash_(hash), store_(std::move(store)) {}

StringKeys::~StringKeys() {
  Clear([] {});
}

StringCell* StringKeys::cell(uint32_t row) const {
  return reinterpret_cast<StringCell*>(store_->Row(row));
}

int64_t StringKeys::size() const {
  const SharedLocks locks(stripes_);
  return stripes_.FirstKeys().back();
}

int64_t StringKeys::bytes() const {
  const SharedLocks locks(stripes_);
  return store_->num_rows() * kCellWords * 4 + long_bytes_ + stripes_.bytes();
}

absl::Status StringKeys::Add(absl::Span<const absl::string_view> strings,
                             int64_t* keys, Executor* executor) {
  const std::unique_ptr<bool[]> found(new (std::nothrow) bool[strings.size()]);
  if (found == nullptr) return NoMemoryForBatch(strings.size());
  FindAll(strings, keys, found.get(), executor);
  const int64_t num_new =
      std::count(found.get(), found.get() + strings.size(), false);
  if (num_new == 0) return absl::OkStatus();

  const std::unique_ptr<int64_t[]> firsts(new (std::nothrow) int64_t[num_new]);
  const std::unique_ptr<uint32_t[]> at(new (std::nothrow) uint32_t[num_new]);
  if (firsts == nullptr || at == nullptr) {
    return NoMemoryForBatch(strings.size());
  }
  int64_t n = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    if (found[i]) continue;
    firsts[n] = keys[i];  // The stripe is right; no more is needed.
    at[n++] = static_cast<uint32_t>(i);
  }
  if (num_new < kParallelFrom) executor = nullptr;
  const auto partition =
      KeyPartition::Create({firsts.get(), static_cast<size_t>(n)}, executor);
  if (!partition.ok()) return partition.status();
  FirstError error;
  ParallelFor(executor, kNumStripes, [&](int64_t stripe) {
    const KeyGroup group = partition->group(stripe);
    if (group.size == 0) return;
    // Once a group: a promise takes a lock of all stripes.
    const absl::StatusOr<int64_t> fresh = store_->Promise(group.size);
    if (!fresh.ok()) {
      return error.Update(at[group.positions[0]], fresh.status());
    }
    const StripeLock lock(stripes_, stripes_[stripe]);
    const int64_t cell_bytes = std::min(
        *fresh, store_->BytesOf(stripes_[stripe].CountFreshRows(group.size)));
    MemoryPromise memory;
    absl::Status status =
        AskFor({strings, at.get(), group}, cell_bytes, &memory);
    error.Update(at[group.positions[0]], status);
    for (int64_t i = 0; status.ok() && i < group.size; ++i) {
      const uint32_t position = at[group.positions[i]];
      status = AddToStripe(stripe, strings[position], &keys[position]);
      error.Update(position, status);
    }
    store_->Withdraw(group.size);
  });
  return error.status();
}

absl::Status StringKeys::AddToStripe(int stripe, absl::string_view text,
                                     int64_t* key) {
  if (text.size() > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("A string of a table has at most 2^32 - 1 bytes; got ",
                     text.size(), "."));
  }
  int64_t attempt;
  if (Search(stripe, text, static_cast<int64_t>(hash_(text)), key, &attempt)) {
    return absl::OkStatus();
  }
  const absl::Status status = stripes_[stripe].Reserve(1);
  if (!status.ok()) return status;
  StringCell filled;
  const bool has_memory = filled.Set(text);
  if (has_memory) {
    bool inserted;
    const uint32_t row = stripes_[stripe].FindOrInsert(HashKey(*key), *key,
                                                       store_.get(), &inserted);
    *cell(row) = filled;
    if (attempt > attempts_[stripe]) attempts_[stripe] = attempt;
    if (filled.is_long()) long_bytes_ += filled.length;
  }
  stripes_[stripe].Release(1);
  if (has_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("No memory for a string of ", text.size(), " bytes."));
}

void StringKeys::Strings(absl::Span<const int64_t> keys,
                         absl::string_view* strings) const {
  SharedLocks locks(stripes_);
  for (size_t i = 0; i < keys.size(); ++i) {
    constexpr size_t kLookAhead = 16;
    const uint64_t ahead =
        HashKey(keys[std::min(i + kLookAhead, keys.size() - 1)]);
    __builtin_prefetch(stripes_.index(StripeOf(ahead)).Home(ahead));
    const uint64_t hash = HashKey(keys[i]);
    const uint32_t row = stripes_.index(StripeOf(hash)).Find(hash, keys[i]);
    strings[i] =
        row == HashIndex::kNoRow ? absl::string_view() : cell(row)->text();
  }
}

void StringKeys::Remove(absl::Span<const int64_t> keys, const InUse& in_use) {
  const WriterLock alone(&users_);
  Erase(keys, in_use);
}

void StringKeys::Keep(const InUse& in_use) {
  const WriterLock alone(&users_);
  for (TableStripe& stripe : stripes_) {
    std::vector<int64_t> keys;
    // users_ keeps all others out.
    stripe.mutex().AssertReaderHeld();
    const HashIndex& index = stripe.index();
    index.ForEach(0, index.num_buckets(),
                  [&keys](int64_t key, uint32_t row) { keys.push_back(key); });
    Erase(keys, in_use);
  }
}

void StringKeys::Erase(absl::Span<const int64_t> keys, const InUse& in_use) {
  std::unique_ptr<bool[]> used(new bool[keys.size()]);
  in_use(keys, used.get());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (used[i]) continue;
    const uint64_t hash = HashKey(keys[i]);
    TableStripe& stripe = stripes_[StripeOf(hash)];
    const StripeLock lock(stripes_, stripe);
    const uint32_t row = stripe.Find(hash, keys[i]);
    if (row == HashIndex::kNoRow) continue;
    if (cell(row)->is_long()) {
      long_bytes_ -= cell(row)->length;
      std::free(cell(row)->address());
    }
    stripe.Erase(hash, keys[i]);
  }
}

void StringKeys::Clear(const std::function<void()>& clear_rows) {
  const WriterLock alone(&users_);
  clear_rows();
  ExclusiveLocks locks(stripes_);
  for (TableStripe& stripe : stripes_) {
    stripe.mutex().AssertHeld();
    const HashIndex& index = stripe.index();
    index.ForEach(0, index.num_buckets(), [this](int64_t key, uint32_t row) {
      if (cell(row)->is_long()) std::free(cell(row)->address());
    });
    stripe.Clear();
  }
  attempts_ = {};
  long_bytes_ = 0;
  store_->Clear();
}

// A number that depends on both, of the stripe of `first`.
int64_t StringKeys::Attempt(int64_t first, int64_t attempt) const {
  if (attempt == 0) return first;
  const int stripe = StripeOfKey(first);
  uint64_t bits = static_cast<uint64_t>(first);
  int64_t key = first;
  for (int64_t i = 0; i < attempt; ++i) {
    do {
      bits = MixBits(bits + 0x9e3779b97f4a7c15ULL);
      key = static_cast<int64_t>(bits);
    } while (StripeOfKey(key) != stripe);
  }
  return key;
}

// Whether `text` is there. Its key, or the one that it would get.
bool StringKeys::Search(int stripe, absl::string_view text, int64_t first,
                        int64_t* key, int64_t* attempt) const {
  stripes_[stripe].mutex().AssertReaderHeld();
  *attempt = -1;
  for (int64_t i = 0; i <= attempts_[stripe]; ++i) {
    const int64_t candidate = Attempt(first, i);
    const uint32_t row = stripes_[stripe].Find(HashKey(candidate), candidate);
    if (row != HashIndex::kNoRow && cell(row)->Is(text)) {
      *key = candidate;
      *attempt = i;
      return true;
    }
    if (row == HashIndex::kNoRow && *attempt < 0) {
      *key = candidate;
      *attempt = i;
    }
  }
  // All are taken by others; a further attempt may be, too, by a string whose
  // first fingerprint is another one.
  for (int64_t i = attempts_[stripe] + 1; *attempt < 0; ++i) {
    const int64_t candidate = Attempt(first, i);
    if (stripes_[stripe].Find(HashKey(candidate), candidate) !=
        HashIndex::kNoRow) {
      continue;
    }
    *key = candidate;
    *attempt = i;
  }
  return false;
}

StringKeys::Reader::Reader(const StringKeys& keys)
    : keys_(keys), locks_(keys.stripes_), indexes_(keys.stripes_.Indexes()) {}

void StringKeys::Reader::Find(const absl::string_view* strings, int64_t n,
                              int64_t* keys, bool* found) const {
  const Hash hash = keys_.hash_;
  const bool hashes_bytes = hash == HashBytes;  // Inline, then.
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = static_cast<int64_t>(hashes_bytes ? HashBytes(strings[i])
                                                : hash(strings[i]));
  }
  const float* cells[kFindKeys];
  keys_.stripes_.AssertReaderHeld();
  FindRows(keys_.stripes_, *keys_.store_, indexes_, keys, n,
           keys_.store_->width(), cells);
  for (int64_t i = 0; i < n; ++i) {
    const auto* const at = reinterpret_cast<const StringCell*>(cells[i]);
    bool is_found = at != nullptr && at->Is(strings[i]);
    if (!is_found) {
      const int stripe = StripeOfKey(keys[i]);
      if (at != nullptr || keys_.attempts_[stripe] > 0) {
        int64_t attempt;
        is_found =
            keys_.Search(stripe, strings[i], keys[i], &keys[i], &attempt);
      }
    }
    if (found != nullptr) found[i] = is_found;
  }
}

void StringKeys::FindAll(absl::Span<const absl::string_view> strings,
                         int64_t* keys, bool* found, Executor* executor) const {
  const Reader reader(*this);
  const int64_t n = strings.size();
  ParallelFor(
      executor, (n + kStringsPerTask - 1) / kStringsPerTask, [&](int64_t task) {
        const int64_t last = std::min(n, (task + 1) * kStringsPerTask);
        for (int64_t i = task * kStringsPerTask; i < last; i += kFindKeys) {
          reader.Find(strings.data() + i, std::min(kFindKeys, last - i),
                      keys + i, found == nullptr ? nullptr : found + i);
        }
      });
}

void StringKeys::Find(absl::Span<const absl::string_view> strings,
                      int64_t* keys, Executor* executor) const {
  FindAll(strings, keys, nullptr, executor);
}

}  // namespace tfembed
