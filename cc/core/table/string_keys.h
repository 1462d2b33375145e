#ifndef TFEMBED_CORE_TABLE_STRING_KEYS_H_
#define TFEMBED_CORE_TABLE_STRING_KEYS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/row_store.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {

// memcmp(a, b, n) == 0 for the few bytes of a cell, where a call takes longer.
inline bool SameBytes(const char* a, const char* b, size_t n) {
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

// A cell with a short string, or with the length and address of a long one.
struct StringCell {
  static constexpr int64_t kInlineBytes = 20;

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

// The map from a table's strings to int64 keys. A string's key is its first
// fingerprint that no other string has: attempt 0 is its hash, attempt k
// another number in the same stripe. So two strings never share a key, and a
// missing string has a key too, the one that it would get.
//
//   string --hash--> attempt 0, 1, ... --index--> cell: length, bytes or
//   address
//
// A stripe stores the greatest attempt that it ever used, nearly always 0, and
// a search tries all attempts up to it; so removals need no tombstones.
//
// Thread-safe. A caller holds users(), shared, from the call that returns keys
// until the last use of the keys; Remove and Keep hold users() exclusively.
// A string takes about 45 bytes, plus its length if that is over 20.
class StringKeys {
 public:
  using Hash = uint64_t (*)(absl::string_view text);

  // ResourceExhausted. Another hash is for tests.
  static absl::StatusOr<std::unique_ptr<StringKeys>> Create();
  static absl::StatusOr<std::unique_ptr<StringKeys>> Create(Hash hash);

  StringKeys(const StringKeys&) = delete;
  StringKeys& operator=(const StringKeys&) = delete;
  ~StringKeys();

  SharedMutex& users() const ABSL_LOCK_RETURNED(users_) { return users_; }

  int64_t size() const;
  int64_t bytes() const;  // All but what malloc adds.

  // keys[i] = the key of strings[i].
  void Find(absl::Span<const absl::string_view> strings, int64_t* keys,
            Executor* executor) const;

  // The same; those that are not there are added. ResourceExhausted: some may
  // have been added.
  absl::Status Add(absl::Span<const absl::string_view> strings, int64_t* keys,
                   Executor* executor);

  // Finds the keys of some strings at a time. While it lives it holds the locks
  // of all stripes, which are taken after those of the table.
  class Reader {
   public:
    explicit Reader(const StringKeys& keys);

    // found[i] says whether string i is there; null: not asked. REQUIRES: n <=
    // kFindKeys (table_stripe.h).
    void Find(const absl::string_view* strings, int64_t n, int64_t* keys,
              bool* found) const;

   private:
    const StringKeys& keys_;
    SharedLocks locks_;
    const StripeIndexes indexes_;
  };

  // strings[i] = the string whose key is keys[i]; its data is null where there
  // is none. Valid until it is removed.
  void Strings(absl::Span<const int64_t> keys,
               absl::string_view* strings) const;

  // Tells which of n keys are in use.
  using InUse = std::function<void(absl::Span<const int64_t> keys, bool* used)>;

  // Removes those of `keys` that are not in use, and their memory.
  void Remove(absl::Span<const int64_t> keys, const InUse& in_use)
      ABSL_LOCKS_EXCLUDED(users_);

  // Removes all strings that are not in use.
  void Keep(const InUse& in_use) ABSL_LOCKS_EXCLUDED(users_);

  // Forgets all, with clear_rows() under the same lock.
  void Clear(const std::function<void()>& clear_rows)
      ABSL_LOCKS_EXCLUDED(users_);

 private:
  StringKeys(Hash hash, std::unique_ptr<RowStore> store);

  StringCell* cell(uint32_t row) const;
  int64_t Attempt(int64_t first, int64_t attempt) const;
  // REQUIRES: the stripe is locked.
  bool Search(int stripe, absl::string_view text, int64_t first, int64_t* key,
              int64_t* attempt) const;
  // `found` may be null.
  void FindAll(absl::Span<const absl::string_view> strings, int64_t* keys,
               bool* found, Executor* executor) const;
  // REQUIRES: the store promised a row.
  absl::Status AddToStripe(int stripe, absl::string_view text, int64_t* key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripes_[stripe].mutex());
  void Erase(absl::Span<const int64_t> keys, const InUse& in_use)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(users_);

  const Hash hash_;
  const std::unique_ptr<RowStore> store_;  // The cells.
  mutable SharedMutex users_;
  TableStripes stripes_;
  std::array<int64_t, kNumStripes> attempts_ = {};  // By the stripe's lock.
  std::atomic<int64_t> long_bytes_{0};
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_STRING_KEYS_H_
