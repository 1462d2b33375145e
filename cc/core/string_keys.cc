#include "cc/core/string_keys.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/first_error.h"
#include "cc/core/key_partition.h"
#include "cc/core/string_cell.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/memory_promise.h"

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

// What a string takes outside of its cell.
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
    : hash_(hash), store_(std::move(store)) {
  JoinStripes(&stripes_);
}

StringKeys::~StringKeys() {
  Clear([] {});
}

StringCell* StringKeys::cell(uint32_t row) const {
  return reinterpret_cast<StringCell*>(store_->Row(row));
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
    firsts[n] = keys[i];  // Of the right stripe, which is all that counts.
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
    std::lock_guard<std::shared_mutex> lock(stripes_[stripe].mutex());
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

// REQUIRES: the stripe is locked, and a row was promised.
absl::Status StringKeys::AddToStripe(int number, absl::string_view text,
                                     int64_t* key) {
  if (text.size() > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("A string of a table has at most 2^32 - 1 bytes; got ",
                     text.size(), "."));
  }
  TableStripe& stripe = stripes_[number];
  int64_t attempt;
  if (Search(number, text, static_cast<int64_t>(hash_(text)), key, &attempt)) {
    return absl::OkStatus();
  }
  const absl::Status status = stripe.Reserve(1);
  if (!status.ok()) return status;
  StringCell filled;
  const bool has_memory = filled.Set(text);
  if (has_memory) {
    bool inserted;
    const uint32_t row =
        stripe.FindOrInsert(HashKey(*key), *key, store_.get(), &inserted);
    *cell(row) = filled;
    if (attempt > attempts_[number]) attempts_[number] = attempt;
    if (filled.is_long()) long_bytes_ += filled.length;
  }
  stripe.Release(1);
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
