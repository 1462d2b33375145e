// From strings to keys: the part of StringKeys that changes nothing.
#include "cc/core/string_cell.h"
#include "cc/core/string_keys.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/overlap.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

constexpr int64_t kStringsPerTask = 4096;

int StripeOfKey(int64_t key) { return StripeOf(HashKey(key)); }

}  // namespace

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
  const StringCell* cells[kOverlap];
  const bool hashes_bytes = hash_ == HashBytes;  // Inline, then.
  const auto set_row = [&](int64_t i, uint32_t row) {
    cells[Slot(i)] = nullptr;
    if (row == HashIndex::kNoRow) return;
    cells[Slot(i)] = cell(row);
    PrefetchRow(cells[Slot(i)], sizeof(StringCell) / 4);
  };
  Overlap(
      strings.size(),
      [&](int64_t i) {
        keys[i] = static_cast<int64_t>(hashes_bytes ? HashBytes(strings[i])
                                                    : hash_(strings[i]));
        const uint64_t hash = HashKey(keys[i]);
        homes[Slot(i)] = stripes_[StripeOf(hash)].index().Home(hash);
        HashIndex::Prefetch(homes[Slot(i)]);
      },
      [&](int64_t i) {
        const HashIndex::Bucket* const home = homes[Slot(i)];
        const uint32_t row = HashIndex::FindIn(*home, keys[i]);
        set_row(i, row);
        if (row != HashIndex::kNoRow || home->overflow == 0) return true;
        __builtin_prefetch(home + 1);
        return false;
      },
      [&](int64_t i) {
        const HashIndex& index = stripes_[StripeOfKey(keys[i])].index();
        set_row(i, index.FindPast(homes[Slot(i)], keys[i]));
      },
      [&](int64_t i) {
        const StringCell* const at = cells[Slot(i)];
        bool is_found = at != nullptr && at->Is(strings[i]);
        if (!is_found) {
          const int stripe = StripeOfKey(keys[i]);
          if (at != nullptr || attempts_[stripe] > 0) {
            int64_t attempt;
            is_found = Search(stripe, strings[i], keys[i], &keys[i], &attempt);
          }
        }
        if (found != nullptr) found[i] = is_found;
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
                          found == nullptr ? nullptr : found + begin);
              });
}

void StringKeys::Find(absl::Span<const absl::string_view> strings,
                      int64_t* keys, Executor* executor) const {
  FindAll(strings, keys, nullptr, executor);
}

}  // namespace tfembed
