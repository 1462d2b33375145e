#ifndef TFEMBED_CORE_TESTING_SEALED_BYTES_H_
#define TFEMBED_CORE_TESTING_SEALED_BYTES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cc/core/sealed/perfect_hash.h"
#include "cc/core/support/crc32c.h"
#include "cc/core/support/hash.h"

namespace tfembed {

// Bytes at a multiple of 64, with nothing behind them.
class LineBytes {
 public:
  explicit LineBytes(int64_t size) : size_(size) {
    void* bytes = nullptr;
    if (posix_memalign(&bytes, 64, std::max<int64_t>(size, 1)) != 0) {
      std::abort();
    }
    bytes_.reset(static_cast<char*>(bytes));
    std::memset(bytes, 0, size);
  }

  LineBytes First(int64_t size) const {
    LineBytes some(size);
    if (size > 0) std::memcpy(some.data(), data(), size);
    return some;
  }

  char* data() const { return bytes_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<char, Free> bytes_;
  int64_t size_;
};

// A table to be sealed, as docs/formats/sealed_table.md has it.
struct TableToSeal {
  int64_t dim = 4;
  int64_t dtype = 1;    // TensorFlow's number; that of the rows in the bytes.
  int64_t trained = 1;  // That of the rows when read.
  int64_t number_bytes = 4;
  bool has_steps = false;  // Rows are two float16 and a byte a number.
  int64_t regions = 1;
  std::array<uint64_t, 2> secret = {0, 0};
  int64_t kind = 0;  // Of the initial rows: constant.
  int64_t seed = 7;
  std::vector<double> arguments = {0.25};
  std::string name = "a table";
  std::vector<std::array<int64_t, 2>> keys;
  int64_t key_words = 1;
  // Writes the row of key i as it is stored; `row` has zeros.
  std::function<void(int64_t i, char* row)> write_row = [](int64_t, char*) {};
};

// Sums up the sections of sealed bytes, whose checks begin at `at_checks`.
inline void SumUp(int64_t at_pilots, int64_t at_checks,
                  const LineBytes* bytes) {
  constexpr int64_t kSlice = int64_t{16} << 20;
  char* const begin = bytes->data();
  char* const end = begin + bytes->size();
  const auto put = [](uint32_t sum, char* at) { std::memcpy(at, &sum, 4); };
  for (int64_t at = 0, i = 0; at < at_checks; at += kSlice, ++i) {
    put(Crc32c(begin + at, std::min(kSlice, at_checks - at)),
        begin + at_checks + 4 * i);
  }
  put(Crc32c(begin, at_pilots), end - 16);
  put(Crc32c(begin + at_checks, bytes->size() - at_checks - 12), end - 12);
  std::memcpy(end - 8, "tfsealed", 8);
}

inline LineBytes SealedBytes(const TableToSeal& table) {
  const auto up = [](int64_t size, int64_t unit = 64) {
    return (size + unit - 1) / unit * unit;
  };
  // Hashes by region, with the number of their key.
  std::vector<std::pair<uint64_t, int64_t>> hashes(table.keys.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i] = {HashKey(table.keys[i][0]), i};
  }
  std::sort(hashes.begin(), hashes.end());
  const auto region_of = [&](uint64_t hash) -> int64_t {
    return (hash >> 32) * table.regions >> 32;
  };
  std::vector<int64_t> counts(table.regions, 0);
  for (const auto& [hash, i] : hashes) ++counts[region_of(hash)];
  const int64_t most =
      std::max<int64_t>(1, *std::max_element(counts.begin(), counts.end()));
  const PerfectHashSizes sizes{table.regions, most / 3 + 1, most * 50 / 49 + 2};
  const int64_t places = sizes.regions * sizes.places;
  const int64_t row_bytes =
      table.has_steps ? 4 + table.dim : table.number_bytes * table.dim;
  const int64_t at_pilots =
      up(168 + 8 * table.arguments.size() + table.name.size());
  const int64_t at_keys = up(at_pilots + 2 * sizes.regions * sizes.buckets);
  const int64_t at_rows = up(at_keys + 8 * table.key_words * places);
  const int64_t at_checks =
      at_rows + up(places * row_bytes,
                   row_bytes > 0 ? std::lcm<int64_t>(64, row_bytes) : 64);
  const int64_t size =
      at_checks + up(4 * (up(at_checks, int64_t{16} << 20) >> 24) + 16);
  LineBytes bytes(size);
  char* const begin = bytes.data();
  const int64_t head[] = {0,
                          1,
                          static_cast<int64_t>(table.keys.size()),
                          table.dim,
                          table.dtype,
                          table.key_words,
                          sizes.regions,
                          sizes.buckets,
                          sizes.places,
                          at_pilots,
                          at_keys,
                          at_rows,
                          size,
                          static_cast<int64_t>(table.secret[0]),
                          static_cast<int64_t>(table.secret[1]),
                          table.has_steps,
                          table.trained,
                          table.kind,
                          table.seed,
                          static_cast<int64_t>(table.arguments.size()),
                          static_cast<int64_t>(table.name.size())};
  std::memcpy(begin, head, sizeof(head));
  std::memcpy(begin, "tfsealed", 8);
  char* const notes = begin + sizeof(head);
  std::copy(table.arguments.begin(), table.arguments.end(),
            reinterpret_cast<double*>(notes));
  table.name.copy(notes + 8 * table.arguments.size(), table.name.size());

  auto* const pilots = reinterpret_cast<uint16_t*>(begin + at_pilots);
  auto* const keys = reinterpret_cast<int64_t*>(begin + at_keys);
  const KeyPlaces of_hash(sizes);
  int64_t first = 0;
  for (int64_t region = 0; region < sizes.regions; ++region) {
    std::vector<uint64_t> mine;
    for (int64_t i = 0; i < counts[region]; ++i) {
      mine.push_back(hashes[first + i].first);
    }
    first += counts[region];
    const auto searched =
        FindPilots(sizes, region, mine,
                   absl::MakeSpan(pilots + region * sizes.buckets,
                                  static_cast<size_t>(sizes.buckets)));
    if (searched != PilotSearch::kFound) std::abort();
  }
  std::vector<bool> used(places);
  for (const auto& [hash, i] : hashes) {
    const int64_t place = of_hash.PlaceOf(hash, pilots[of_hash.BucketOf(hash)]);
    used[place] = true;
    std::copy_n(table.keys[i].data(), table.key_words,
                keys + place * table.key_words);
    table.write_row(i, begin + at_rows + place * row_bytes);
  }
  for (int64_t place = 0; place < places; ++place) {
    int64_t absent = 0;
    const auto at = [&](int64_t key) -> int64_t {
      const uint64_t hash = HashKey(key);
      return of_hash.PlaceOf(hash, pilots[of_hash.BucketOf(hash)]);
    };
    if (used[place]) continue;
    while (at(absent) == place) ++absent;
    std::copy_n(table.keys.empty() ? &absent : table.keys[0].data(),
                table.keys.empty() ? 1 : table.key_words,
                keys + place * table.key_words);
  }
  SumUp(at_pilots, at_checks, &bytes);
  return bytes;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_SEALED_BYTES_H_
