#include "cc/core/string_keys.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/overlap.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

constexpr int64_t kCellWords = 6;
constexpr int64_t kInlineBytes = 20;
constexpr int64_t kStringsPerTask = 4096;

int StripeOfKey(int64_t key) { return StripeOf(HashKey(key)); }

// memcmp(a, b, n) == 0 for the few bytes of a cell, where a call takes longer.
bool SameBytes(const char* a, const char* b, size_t n) {
  const auto differ = [a, b](size_t at, auto word_a) {
    auto word_b = word_a;
    std::memcpy(&word_a, a + at, sizeof(word_a));
    std::memcpy(&word_b, b + at, sizeof(word_b));
    return word_a != word_b;
  };
  if (n >= 16) {
    return !(differ(0, uint64_t{}) | differ(8, uint64_t{}) |
             differ(n - 8, uint64_t{}));
  }
  if (n >= 8) return !(differ(0, uint64_t{}) | differ(n - 8, uint64_t{}));
  return std::memcmp(a, b, n) == 0;
}

}  // namespace

// A string where it is short, else its length and address.
struct StringKeys::Cell {
  uint32_t length;
  char bytes[kInlineBytes];

  bool is_long() const { return length > kInlineBytes; }

  char* address() const {
    char* address;
    std::memcpy(&address, bytes, sizeof(address));
    return address;
  }
  absl::string_view text() const {
    return {is_long() ? address() : bytes, length};
  }
  bool Is(absl::string_view other) const {
    if (other.size() != length) return false;
    return is_long() ? text() == other : SameBytes(bytes, other.data(), length);
  }

  // False where there is no memory.
  bool Set(absl::string_view text) {
    length = static_cast<uint32_t>(text.size());
    if (!is_long()) {
      std::memcpy(bytes, text.data(), text.size());
      return true;
    }
    void* copy = std::malloc(text.size());
    if (copy == nullptr) return false;
    std::memcpy(copy, text.data(), text.size());
    std::memcpy(bytes, &copy, sizeof(copy));
    return true;
  }
};

absl::StatusOr<std::unique_ptr<StringKeys>> StringKeys::Create() {
  return Create(HashBytes);
}

absl::StatusOr<std::unique_ptr<StringKeys>> StringKeys::Create(Hash hash) {
  static_assert(sizeof(Cell) == kCellWords * 4);
  auto store = RowStore::Create(kCellWords);
  if (!store.ok()) return store.status();
  return std::unique_ptr<StringKeys>(new StringKeys(hash, *std::move(store)));
}

StringKeys::StringKeys(Hash hash, std::unique_ptr<RowStore> store)
    : hash_(hash), store_(std::move(store)) {
  for (int i = 0; i < kNumStripes; ++i) {
    stripes_[i].set_growth_phase(static_cast<double>(i) / kNumStripes);
  }
}

StringKeys::~StringKeys() {
  Clear([] {});
}

StringKeys::Cell* StringKeys::cell(uint32_t row) const {
  return reinterpret_cast<Cell*>(store_->Row(row));
}

int64_t StringKeys::size() const {
  SharedLocks locks(stripes_);
  int64_t size = 0;
  for (const TableStripe& stripe : stripes_) size += stripe.index().size();
  return size;
}

int64_t StringKeys::bytes() const {
  SharedLocks locks(stripes_);
  int64_t bytes = store_->num_rows() * kCellWords * 4 + long_bytes_;
  for (const TableStripe& stripe : stripes_) bytes += stripe.bytes();
  return bytes;
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

// REQUIRES: all stripes are locked.
void StringKeys::FindRange(absl::Span<const absl::string_view> strings,
                           int64_t* keys, bool* found) const {
  const HashIndex::Bucket* homes[kOverlap];
  const Cell* cells[kOverlap];
  const bool hashes_bytes = hash_ == HashBytes;  // Inline, then.
  const auto set_row = [&](int64_t i, uint32_t row) {
    cells[Slot(i)] = nullptr;
    if (row == HashIndex::kNoRow) return;
    cells[Slot(i)] = cell(row);
    PrefetchRow<false>(cells[Slot(i)], kCellWords);
  };
  Overlap(
      strings.size(),
      [&](int64_t i) {
        keys[i] = static_cast<int64_t>(hashes_bytes ? HashBytes(strings[i])
                                                    : hash_(strings[i]));
        const uint64_t hash = HashKey(keys[i]);
        homes[Slot(i)] = stripes_[StripeOf(hash)].index().Home(hash);
        __builtin_prefetch(homes[Slot(i)]);
      },
      [&](int64_t i) {
        const HashIndex::Bucket*& home = homes[Slot(i)];
        const uint32_t row = HashIndex::FindIn(*home, keys[i]);
        set_row(i, row);
        if (row == HashIndex::kNoRow && home->overflow != 0) {
          __builtin_prefetch(home + 1);
        } else {
          home = nullptr;  // Settled.
        }
      },
      [&](int64_t i) {
        if (homes[Slot(i)] == nullptr) return;
        const HashIndex& index = stripes_[StripeOfKey(keys[i])].index();
        set_row(i, index.FindPast(homes[Slot(i)], keys[i]));
      },
      [&](int64_t i) {
        const Cell* const at = cells[Slot(i)];
        found[i] = at != nullptr && at->Is(strings[i]);
        if (found[i]) return;
        const int stripe = StripeOfKey(keys[i]);
        if (at == nullptr && attempts_[stripe] == 0) return;
        int64_t attempt;
        found[i] = Search(stripe, strings[i], keys[i], &keys[i], &attempt);
      });
}

void StringKeys::FindAll(absl::Span<const absl::string_view> strings,
                         int64_t* keys, bool* found, Executor* executor) const {
  SharedLocks locks(stripes_);
  const int64_t n = strings.size();
  ParallelFor(executor, (n + kStringsPerTask - 1) / kStringsPerTask,
              [&](int64_t task) {
                const int64_t begin = task * kStringsPerTask;
                FindRange(strings.subspan(begin, kStringsPerTask), keys + begin,
                          found + begin);
              });
}

void StringKeys::Find(absl::Span<const absl::string_view> strings,
                      int64_t* keys, Executor* executor) const {
  std::unique_ptr<bool[]> found(new bool[strings.size()]);
  FindAll(strings, keys, found.get(), executor);
}

absl::Status StringKeys::Add(absl::Span<const absl::string_view> strings,
                             int64_t* keys, Executor* executor) {
  std::unique_ptr<bool[]> found(new bool[strings.size()]);
  FindAll(strings, keys, found.get(), executor);
  for (size_t i = 0; i < strings.size(); ++i) {
    if (found[i]) continue;
    const absl::Status status =
        AddToStripe(StripeOfKey(keys[i]), strings[i], &keys[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status StringKeys::AddToStripe(int number, absl::string_view text,
                                     int64_t* key) {
  if (text.size() > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("A string of a table has at most 2^32 - 1 bytes; got ",
                     text.size(), "."));
  }
  TableStripe& stripe = stripes_[number];
  std::lock_guard<std::shared_mutex> lock(stripe.mutex());
  int64_t attempt;
  if (Search(number, text, static_cast<int64_t>(hash_(text)), key, &attempt)) {
    return absl::OkStatus();
  }
  absl::Status status = stripe.Reserve(1);
  if (!status.ok()) return status;
  status = store_->Promise(1);
  if (status.ok()) {
    Cell filled;
    if (filled.Set(text)) {
      bool inserted;
      const uint32_t row =
          stripe.FindOrInsert(HashKey(*key), *key, store_.get(), &inserted);
      *cell(row) = filled;
      if (attempt > attempts_[number]) attempts_[number] = attempt;
      if (filled.is_long()) long_bytes_ += filled.length;
    } else {
      status = absl::ResourceExhaustedError(
          absl::StrCat("No memory for a string of ", text.size(), " bytes."));
    }
    store_->Withdraw(1);
  }
  stripe.Release(1);
  return status;
}

void StringKeys::Strings(absl::Span<const int64_t> keys,
                         absl::string_view* strings) const {
  SharedLocks locks(stripes_);
  for (size_t i = 0; i < keys.size(); ++i) {
    constexpr size_t kLookAhead = 16;
    const uint64_t ahead =
        HashKey(keys[std::min(i + kLookAhead, keys.size() - 1)]);
    __builtin_prefetch(stripes_[StripeOf(ahead)].index().Home(ahead));
    const uint64_t hash = HashKey(keys[i]);
    const uint32_t row = stripes_[StripeOf(hash)].Find(hash, keys[i]);
    strings[i] =
        row == HashIndex::kNoRow ? absl::string_view() : cell(row)->text();
  }
}

void StringKeys::Remove(absl::Span<const int64_t> keys, const InUse& in_use) {
  std::lock_guard<std::shared_mutex> alone(users_);
  Erase(keys, in_use);
}

void StringKeys::Keep(const InUse& in_use) {
  std::lock_guard<std::shared_mutex> alone(users_);
  for (TableStripe& stripe : stripes_) {
    std::vector<int64_t> keys;
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
    std::lock_guard<std::shared_mutex> lock(stripe.mutex());
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
  std::lock_guard<std::shared_mutex> alone(users_);
  clear_rows();
  ExclusiveLocks locks(stripes_);
  for (TableStripe& stripe : stripes_) {
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

}  // namespace tfembed
