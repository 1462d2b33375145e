#include "cc/kernels/checkpoint_repeats.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/memory_promise.h"
#include "cc/kernels/checkpoint_index.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerWord = 4;  // 16 bits each.
constexpr int64_t kBlock = 32;       // Words that are asked for at a time.

uint64_t HashOf(int64_t key) { return HashKey(key); }
uint64_t HashOf(absl::string_view key) { return HashBytes(key); }

std::string NameOf(int64_t key) { return absl::StrCat(key); }
std::string NameOf(const std::string& key) {
  return absl::StrCat("'", Printable(key), "'");
}

// Three bits, by those of a hash that tell least about its word.
uint64_t BitsOf(uint64_t hash) {
  return uint64_t{1} << (hash & 63) | uint64_t{1} << (hash >> 6 & 63) |
         uint64_t{1} << (hash >> 12 & 63);
}

// Bits that keys set, by their hashes.
class KeyFilter {
 public:
  absl::Status Reserve(int64_t num_words) {
    const int64_t bytes = num_words * static_cast<int64_t>(sizeof(uint64_t));
    TF_RETURN_IF_ERROR(CheckMemory(bytes));
    auto memory = MemoryBlock::Allocate(bytes);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    num_words_ = num_words;
    return absl::OkStatus();
  }

  std::atomic<uint64_t>& WordOf(uint64_t hash) const {
    const auto word = static_cast<uint64_t>(
        static_cast<unsigned __int128>(hash) * num_words_ >> 64);
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data())[word];
  }

  // Whether all its bits were set before.
  bool Set(uint64_t hash) {
    const uint64_t bits = BitsOf(hash);
    const uint64_t before =
        WordOf(hash).fetch_or(bits, std::memory_order_relaxed);
    return (before & bits) == bits;
  }

  bool Has(uint64_t hash) const {
    const uint64_t bits = BitsOf(hash);
    return (WordOf(hash).load(std::memory_order_relaxed) & bits) == bits;
  }

 private:
  MemoryBlock memory_;
  uint64_t num_words_ = 0;
};

// Keys of one kind, in both passes. Note and Count are thread-safe.
template <typename Key>
class Repeats {
 public:
  template <typename From>
  void Note(const From* keys, int64_t n, KeyFilter* filter) {
    std::vector<Key> found;
    uint64_t hashes[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      for (int64_t i = 0; i < size; ++i) {
        hashes[i] = HashOf(keys[begin + i]);
        __builtin_prefetch(&filter->WordOf(hashes[i]), /*rw=*/1);
      }
      for (int64_t i = 0; i < size; ++i) {
        if (filter->Set(hashes[i])) found.emplace_back(keys[begin + i]);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    std::move(found.begin(), found.end(), std::back_inserter(suspects_));
  }

  // Ends the first pass.
  absl::Status Sort() {
    std::sort(suspects_.begin(), suspects_.end());
    counts_.resize(suspects_.size());
    TF_RETURN_IF_ERROR(
        filter_.Reserve(static_cast<int64_t>(suspects_.size()) + 1));
    for (const Key& key : suspects_) filter_.Set(HashOf(key));
    return absl::OkStatus();
  }

  bool has_suspects() const { return !suspects_.empty(); }

  template <typename From>
  void Count(const From* keys, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (!filter_.Has(HashOf(keys[i]))) continue;
      const Key key(keys[i]);
      const auto at = std::lower_bound(suspects_.begin(), suspects_.end(), key);
      if (at == suspects_.end() || *at != key) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      uint8_t& count = counts_[at - suspects_.begin()];
      count = std::min(count + 1, 2);
    }
  }

  // The least that was counted twice.
  std::optional<std::string> Found() const {
    const auto twice = std::find(counts_.begin(), counts_.end(), 2);
    if (twice == counts_.end()) return std::nullopt;
    return NameOf(suspects_[twice - counts_.begin()]);
  }

 private:
  std::mutex mutex_;  // Guards what follows while keys are taken.
  std::vector<Key> suspects_;
  std::vector<uint8_t> counts_;  // How often each came, 2 at most.
  KeyFilter filter_;             // Of the suspects.
};

// Calls body(first key, number of keys, their Repeats).
template <typename Body>
void Visit(const tensorflow::Tensor& keys, Repeats<int64_t>* numbers,
           Repeats<std::string>* strings, Body body) {
  const int64_t n = keys.NumElements();
  if (keys.dtype() == tensorflow::DT_STRING) {
    body(keys.flat<tensorflow::tstring>().data(), n, strings);
  } else if (keys.dtype() == tensorflow::DT_INT32) {
    body(keys.flat<int32_t>().data(), n, numbers);
  } else {
    body(keys.flat<int64_t>().data(), n, numbers);
  }
}

}  // namespace

absl::StatusOr<std::optional<std::string>> FindRepeatedKey(
    int64_t num_keys, const GiveKeys& give) {
  KeyFilter filter;
  TF_RETURN_IF_ERROR(filter.Reserve(num_keys / kKeysPerWord + 1));
  Repeats<int64_t> numbers;
  Repeats<std::string> strings;
  TF_RETURN_IF_ERROR(give(/*again=*/false, [&](const tensorflow::Tensor& keys) {
    Visit(keys, &numbers, &strings,
          [&](const auto* first, int64_t n, auto* repeats) {
            repeats->Note(first, n, &filter);
          });
  }));
  TF_RETURN_IF_ERROR(numbers.Sort());
  TF_RETURN_IF_ERROR(strings.Sort());
  if (!numbers.has_suspects() && !strings.has_suspects()) return std::nullopt;
  TF_RETURN_IF_ERROR(give(/*again=*/true, [&](const tensorflow::Tensor& keys) {
    Visit(keys, &numbers, &strings,
          [&](const auto* first, int64_t n, auto* repeats) {
            repeats->Count(first, n);
          });
  }));
  std::optional<std::string> found = numbers.Found();
  return found.has_value() ? found : strings.Found();
}

absl::Status HasTwice(absl::string_view key) {
  return absl::InvalidArgumentError(absl::StrCat(
      "it has key ", key, " more than once; a table has each key once"));
}

}  // namespace tfembed
