// From strings to keys: the part of StringKeys that changes nothing.
#include <algorithm>

#include "cc/core/string_cell.h"
#include "cc/core/string_keys.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/table_find.h"

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

StringKeys::Reader::Reader(const StringKeys& keys)
    : keys_(keys), locks_(keys.stripes_), indexes_(IndexesOf(keys.stripes_)) {}

void StringKeys::Reader::Find(const absl::string_view* strings, int64_t n,
                              int64_t* keys, bool* found) const {
  const Hash hash = keys_.hash_;
  const bool hashes_bytes = hash == HashBytes;  // Inline, then.
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = static_cast<int64_t>(hashes_bytes ? HashBytes(strings[i])
                                                : hash(strings[i]));
  }
  const float* cells[kFindKeys];
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
