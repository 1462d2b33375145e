#include "cc/core/sealed/sealed_table.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "cc/core/sealed/string_hash.h"
#include "cc/core/support/crc32c.h"
#include "cc/core/support/half.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

constexpr char kMark[] = "tfsealed";
constexpr int64_t kMarkBytes = 8;
constexpr int64_t kHeadBytes = 128;
constexpr int64_t kNotesBytes = 40;  // Before the arguments.
constexpr int64_t kSliceBytes = int64_t{16} << 20;
constexpr int64_t kScaleBytes = 4;  // Of a row's two float16.
// What limits the head's numbers, so that no sum of them overflows.
constexpr int64_t kMostDim = int64_t{1} << 26;
constexpr int64_t kMostNotes = int64_t{1} << 30;
constexpr int64_t kMostStreamed = 4096;  // Bytes of a row.
constexpr uint64_t kMostStringHash = (uint64_t{1} << 63) - 1;

constexpr const char* kKinds[] = {"constant", "vector", "uniform", "normal",
                                  "truncated_normal"};

int64_t Up(int64_t size, int64_t unit = kLineBytes) {
  return (size + unit - 1) / unit * unit;
}

template <typename T>
T At(const char* bytes, int64_t i = 0) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

// The dtype that TensorFlow has this number for.
std::optional<ElementKind> KindOf(int64_t number) {
  switch (number) {
    case 1:
      return ElementKind::kFloat32;
    case 2:
      return ElementKind::kFloat64;
    case 3:
      return ElementKind::kInt32;
    case 6:
      return ElementKind::kInt8;
    case 9:
      return ElementKind::kInt64;
    case 10:
      return ElementKind::kBool;
    case 14:
      return ElementKind::kBfloat16;
    case 19:
      return ElementKind::kFloat16;
    default:
      return std::nullopt;
  }
}

// Reads a row of steps. Always inline, so that loops of a known length are.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void ReadSteps(
    const char* __restrict stored, int64_t n, float* __restrict row) {
  const float least = Half{At<uint16_t>(stored, 0)}.ToFloat();
  const float step = Half{At<uint16_t>(stored, 1)}.ToFloat();
  const auto* const steps =
      reinterpret_cast<const unsigned char*>(stored + kScaleBytes);
  for (int64_t i = 0; i < n; ++i) {
    row[i] = least + step * static_cast<float>(steps[i]);
  }
}

}  // namespace

struct SealedTable::Head {
  char mark[kMarkBytes];
  int64_t version, num_rows, dim, dtype, key_words;
  PerfectHashSizes sizes;
  int64_t at_pilots, at_keys, at_rows, num_bytes;
  uint64_t secret[2];
  int64_t has_steps;
};

// Keys as their table has them: words, of which the first is hashed.
class SealedTable::IntegerKeys {
 public:
  static constexpr int kWords = 1;

  explicit IntegerKeys(const int64_t* keys) : keys_(keys) {}

  void Read(int64_t i, int64_t* words) const { words[0] = keys_[i]; }
  // The key by which the initial row is drawn.
  int64_t Drawn(int64_t i) const { return keys_[i]; }

 private:
  const int64_t* const keys_;
};

class SealedTable::StringKeys {
 public:
  static constexpr int kWords = 2;

  StringKeys(const absl::string_view* keys, const uint64_t* secret)
      : keys_(keys), secret_(secret) {}

  void Read(int64_t i, int64_t* words) const {
    const uint64_t keyed = KeyedStringHash(keys_[i], secret_[0], secret_[1]);
    words[0] = static_cast<int64_t>(keyed % kMostStringHash);
    words[1] = static_cast<int64_t>(Fingerprint64(keys_[i]) % kMostStringHash);
  }
  int64_t Drawn(int64_t i) const {
    return static_cast<int64_t>(HashBytes(keys_[i]));
  }

 private:
  const absl::string_view* const keys_;
  const uint64_t* const secret_;
};

// A key on its way: first its pilot is asked for, kAhead keys later what lies
// at its place, and again kAhead keys later both are there.
struct SealedTable::Walk {
  static constexpr int64_t kAhead = 24;
  static constexpr int64_t kKeys = 64;  // A power of two above 2 * kAhead.

  int64_t words[2];
  uint64_t hash;
  uint64_t place;
};

std::unique_ptr<SealedTable> SealedTable::Open(const void* bytes, int64_t size,
                                               std::string* fault) {
  static_assert(sizeof(Head) == kHeadBytes);
  const auto* const begin = static_cast<const char*>(bytes);
  if (size < kHeadBytes + kNotesBytes) {
    *fault = "it has " + std::to_string(size) + " bytes, and no head";
    return nullptr;
  }
  std::unique_ptr<SealedTable> table(new SealedTable(begin));
  *fault = table->TakeHead(At<Head>(begin), size);
  if (fault->empty()) *fault = table->CheckBegin();
  if (fault->empty()) *fault = table->TakeNotes();
  return fault->empty() ? std::move(table) : nullptr;
}

bool SealedTable::IsMark(const char* bytes) {
  return std::memcmp(bytes, kMark, kMarkBytes) == 0;
}

std::string SealedTable::TakeHead(const Head& head, int64_t size) {
  if (!IsMark(head.mark)) return "it does not begin with 'tfsealed'";
  if (head.version != 1) {
    return "its version is " + std::to_string(head.version) +
           "; this library reads 1";
  }
  const auto stored = KindOf(head.dtype);
  if (!stored || head.key_words < 1 || head.key_words > 2 ||
      head.has_steps < 0 || head.has_steps > 1 ||
      (head.has_steps && *stored != ElementKind::kFloat32)) {
    return "it has keys or rows of an unknown form";
  }
  if (!head.sizes.AreValid() || head.dim < 0 || head.dim > kMostDim ||
      head.num_rows < 0 ||
      head.num_rows > head.sizes.regions * head.sizes.places) {
    return "its numbers of rows and places are none";
  }
  stored_ = *stored;
  has_steps_ = head.has_steps;
  row_bytes_ = has_steps_ ? kScaleBytes + head.dim : stored_.size() * head.dim;
  const int64_t places = head.sizes.regions * head.sizes.places;
  const int64_t at_keys =
      Up(head.at_pilots + 2 * head.sizes.regions * head.sizes.buckets);
  const int64_t at_rows = Up(at_keys + 8 * head.key_words * places);
  const int64_t whole_rows =
      row_bytes_ > 0 ? std::lcm(row_bytes_, kLineBytes) : kLineBytes;
  const int64_t at_checks = at_rows + Up(places * row_bytes_, whole_rows);
  const int64_t slices = Up(at_checks, kSliceBytes) / kSliceBytes;
  if (head.at_pilots < kHeadBytes + kNotesBytes ||
      head.at_pilots > kMostNotes || head.at_pilots % kLineBytes != 0 ||
      head.at_keys != at_keys || head.at_rows != at_rows ||
      head.num_bytes != at_checks + Up(4 * slices + 16)) {
    return "its sections do not begin where its numbers say";
  }
  if (size != head.num_bytes) {
    return "it has " + std::to_string(size) + " bytes of " +
           std::to_string(head.num_bytes);
  }
  num_rows_ = head.num_rows;
  dim_ = head.dim;
  key_words_ = head.key_words;
  secret_[0] = head.secret[0];
  secret_[1] = head.secret[1];
  num_bytes_ = head.num_bytes;
  places_ = KeyPlaces(head.sizes);
  pilots_ = reinterpret_cast<const uint16_t*>(bytes_ + head.at_pilots);
  keys_ = reinterpret_cast<const int64_t*>(bytes_ + at_keys);
  rows_ = bytes_ + at_rows;
  checks_ = bytes_ + at_checks;
  return "";
}

std::string SealedTable::CheckBegin() const {
  const char* const end = bytes_ + num_bytes_;
  if (!IsMark(end - kMarkBytes)) return "it does not end with 'tfsealed'";
  const int64_t at_pilots = reinterpret_cast<const char*>(pilots_) - bytes_;
  if (At<uint32_t>(end - 12) != Crc32c(checks_, end - 12 - checks_) ||
      At<uint32_t>(end - 16) != Crc32c(bytes_, at_pilots)) {
    return "its head or its checksums have another checksum";
  }
  return "";
}

std::string SealedTable::TakeNotes() {
  const char* at = bytes_ + kHeadBytes;
  const int64_t dtype = At<int64_t>(at, 0);
  const int64_t kind = At<int64_t>(at, 1);
  const auto seed = At<uint64_t>(at, 2);
  const int64_t count = At<int64_t>(at, 3);
  const int64_t name_bytes = At<int64_t>(at, 4);
  const int64_t size = reinterpret_cast<const char*>(pilots_) - at;
  const auto type = KindOf(dtype);
  if (!type || kind < 0 || kind >= static_cast<int64_t>(std::size(kKinds)) ||
      count < 0 || count > size / 8 || name_bytes < 0 || name_bytes > size ||
      Up(kHeadBytes + kNotesBytes + 8 * count + name_bytes) !=
          kHeadBytes + size) {
    return "its notes are none";
  }
  at += kNotesBytes;
  std::vector<double> arguments(count);
  if (count > 0) std::memcpy(arguments.data(), at, 8 * count);
  name_.assign(at + 8 * count, name_bytes);
  std::string fault;
  missing_ = InitialRows::Make(kKinds[kind], std::move(arguments), seed, dim_,
                               *type, &fault);
  if (!missing_) return "its notes are none: " + fault;
  // Rows are as trained, or float32 or bfloat16 of trained floats.
  is_copied_ = !has_steps_ && stored_ == *type;
  const bool is_float =
      missing_->type().is_trainable() || *type == ElementKind::kFloat64;
  if (!is_copied_ && !(is_float && stored_.is_trainable())) {
    return std::string("it has rows of ") + stored_.name() + " for " +
           missing_->type().name();
  }
  return "";
}

bool SealedTable::IsWhole() const {
  if (!CheckBegin().empty()) return false;
  const int64_t size = checks_ - bytes_;
  for (int64_t at = 0, i = 0; at < size; at += kSliceBytes, ++i) {
    const int64_t some = std::min(kSliceBytes, size - at);
    if (Crc32c(bytes_ + at, some) != At<uint32_t>(checks_, i)) return false;
  }
  return true;
}

void SealedTable::Find(const int64_t* keys, int64_t n, void* rows,
                       uint8_t* exists) const {
  FindAll(IntegerKeys(keys), n, static_cast<char*>(rows), exists);
}

void SealedTable::Find(const absl::string_view* keys, int64_t n, void* rows,
                       uint8_t* exists) const {
  FindAll(StringKeys(keys, secret_), n, static_cast<char*>(rows), exists);
}

template <typename Keys>
void SealedTable::FindAll(const Keys& keys, int64_t n, char* rows,
                          uint8_t* exists) const {
  WithKnownBytes(dim_ * type().size(),
                 [&](auto known) { FindRange<known>(keys, n, rows, exists); });
}

// kBytes: the bytes of a row that is written; 0: any.
template <int64_t kBytes, typename Keys>
void SealedTable::FindRange(const Keys& keys, int64_t n, char* rows,
                            uint8_t* exists) const {
  const int64_t row_bytes = kBytes > 0 ? kBytes : dim_ * type().size();
  const bool streams = rows != nullptr && StreamsRows(row_bytes, n) &&
                       row_bytes <= kMostStreamed &&
                       reinterpret_cast<uintptr_t>(rows) % kLineBytes == 0;
  const int64_t words = rows != nullptr ? (row_bytes_ + 3) / 4 : 0;
  Walk walks[Walk::kKeys];
  for (int64_t i = -2 * Walk::kAhead; i < n; ++i) {
    if (const int64_t next = i + 2 * Walk::kAhead; next < n) {
      Walk& walk = walks[next % Walk::kKeys];
      keys.Read(next, walk.words);
      walk.hash = HashKey(walk.words[0]);
      __builtin_prefetch(pilots_ + places_.BucketOf(walk.hash));
    }
    if (const int64_t next = i + Walk::kAhead; next >= 0 && next < n) {
      Walk& walk = walks[next % Walk::kKeys];
      const uint64_t bucket = places_.BucketOf(walk.hash);
      walk.place = places_.PlaceOf(walk.hash, pilots_[bucket]);
      __builtin_prefetch(keys_ + walk.place * Keys::kWords);
      if (words > 0) PrefetchRow(rows_ + walk.place * row_bytes_, words);
    }
    if (i < 0) continue;
    const Walk& walk = walks[i % Walk::kKeys];
    bool found = true;
    for (int word = 0; word < Keys::kWords; ++word) {
      found &= keys_[walk.place * Keys::kWords + word] == walk.words[word];
    }
    if (exists != nullptr) exists[i] = found;
    if (rows == nullptr) continue;
    char* const row = rows + i * row_bytes;
    if (found) {
      ReadRow<kBytes>(rows_ + walk.place * row_bytes_, streams, row);
    } else {
      missing_->Fill(keys.Drawn(i), row);
    }
  }
  if (streams) StreamedRows();
}

template <int64_t kBytes>
void SealedTable::ReadRow(const char* stored, bool streams, char* row) const {
  const int64_t bytes = kBytes > 0 ? kBytes : dim_ * type().size();
  if (is_copied_ && stored_.kind() != ElementKind::kBool) {
    if (streams) {
      StreamRow(stored, row, bytes);
    } else {
      CopyBytes(stored, row, bytes);
    }
  } else if (is_copied_) {
    for (int64_t i = 0; i < dim_; ++i) row[i] = stored[i] != 0;
  } else if (streams) {
    alignas(kLineBytes) char read[kMostStreamed];
    ReadRow<kBytes>(stored, /*streams=*/false, read);
    StreamRow(read, row, bytes);
  } else if (type().is_float32() && has_steps_) {
    ReadSteps(stored, bytes / 4, reinterpret_cast<float*>(row));
  } else if (type().is_float32()) {
    stored_.ToFloats(stored, reinterpret_cast<float*>(row), dim_);
  } else {
    static thread_local std::vector<float> floats;
    floats.resize(dim_);
    if (has_steps_) {
      ReadSteps(stored, dim_, floats.data());
    } else {
      stored_.ToFloats(stored, floats.data(), dim_);
    }
    type().FromFloats(floats.data(), row, dim_);
  }
}

}  // namespace tfembed
