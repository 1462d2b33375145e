#include "cc/core/table/embedding_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/support/prefetch.h"

namespace tfembed {
namespace {

absl::Status CheckOptions(const EmbeddingTable::Options& options,
                          const InitialRows& initial_rows) {
  if (options.dim < 0 || options.dim > kMaxDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`dim` must be between 0 and ", kMaxDim, "; got ", options.dim, "."));
  }
  if (options.initial_capacity < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`initial_capacity` must not be negative; got ",
                     options.initial_capacity, "."));
  }
  if (options.meta_words < 0 || options.meta_words > kMaxDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("`meta_words` must be between 0 and ", kMaxDim, "; got ",
                     options.meta_words, "."));
  }
  if (initial_rows.dim() != options.dim ||
      initial_rows.type() != options.type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The initial rows have ", initial_rows.dim(), " columns of ",
        initial_rows.type().name(), "; the table's have ", options.dim, " of ",
        options.type.name(), "."));
  }
  if (options.stochastic_rounding && !options.type.is_half()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`stochastic_rounding` is for rows of float16 or bfloat16; "
        "got ",
        options.type.name(), "."));
  }
  return absl::OkStatus();
}

// Checkpoints write them between spaces and line ends.
bool IsWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != 127;
  });
}

// How many of so many keys a stripe may get: stripes differ by chance; four
// standard deviations cover them all.
int64_t ShareOf(int64_t keys) {
  const double mean = static_cast<double>(keys) / kNumStripes;
  return static_cast<int64_t>(mean + 4 * std::sqrt(mean)) + 1;
}

}  // namespace

absl::Status CheckSlotLayout(const SlotLayout& layout, ValueType type) {
  if (!type.is_trainable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Rows of ", type.name(), " cannot be trained by '", layout.owner,
        "'; only float32, float16 and bfloat16 rows can."));
  }
  if (layout.names.size() != layout.initial_values.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Each slot needs one initial value; got ", layout.names.size(),
        " slots and ", layout.initial_values.size(), " values for '",
        layout.owner, "'."));
  }
  if (layout.names.size() > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("A row has at most ", kMaxSlots, " slots; got ",
                     layout.names.size(), " for '", layout.owner, "'."));
  }
  if (!IsWord(layout.owner)) {
    return absl::InvalidArgumentError(
        absl::StrCat("A rule's name must be a word without spaces; got '",
                     layout.owner, "'."));
  }
  for (size_t s = 0; s < layout.names.size(); ++s) {
    const auto begin = layout.names.begin();
    if (IsWord(layout.names[s]) &&
        std::find(begin, begin + s, layout.names[s]) == begin + s) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "Slots must have names of their own, without spaces; got '",
        layout.names[s], "' of '", layout.owner, "'."));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(
    const Options& options, InitialRows initial_rows) {
  absl::Status status = CheckOptions(options, initial_rows);
  if (!status.ok()) return status;
  RowLayout layout;
  layout.dim = options.dim;
  layout.type = options.type;
  layout.meta_words = options.meta_words;
  std::unique_ptr<EvictionPolicy> eviction;
  if (!options.eviction.empty()) {
    auto policy = EvictionPolicy::Parse(options.eviction);
    if (!policy.ok()) return policy.status();
    eviction = *std::move(policy);
    layout.meta_words += eviction->meta_words();
  }
  std::optional<InitialRows> missing_rows;
  if (options.missing_value.has_value()) {
    auto rows = InitialRows::Create("constant", {*options.missing_value},
                                    /*seed=*/0, options.dim, options.type);
    if (!rows.ok()) return rows.status();
    missing_rows = *std::move(rows);
  }
  if (options.max_size < 0 || (options.max_size > 0 && eviction == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`max_size` must not be negative, and needs an eviction policy; got ",
        options.max_size, " with the policy '", options.eviction, "'."));
  }
  absl::StatusOr<std::unique_ptr<RowStore>> store =
      RowStore::Create(layout.width());
  if (!store.ok()) return store.status();
  std::unique_ptr<EmbeddingTable> table(new EmbeddingTable(
      layout, options.keys, std::move(initial_rows), *std::move(store)));
  if (options.keys == KeyKind::kString) {
    auto strings = StringKeys::Create();
    if (!strings.ok()) return strings.status();
    table->strings_ = *std::move(strings);
  }
  int64_t capacity = options.initial_capacity;
  if (options.max_size > 0) {
    capacity = std::min(capacity, options.max_size);
    table->stripes_.SetUsualKeys(ShareOf(options.max_size));
  }
  status = table->ReserveKeys(capacity);
  if (status.ok())
    status = table->SetAdmission(options.admission, options.max_size);
  if (!status.ok()) return status;
  table->SetEviction(std::move(eviction), options.max_size);
  table->rounds_by_chance_ = options.stochastic_rounding;
  table->missing_rows_ = std::move(missing_rows);
  return table;
}

EmbeddingTable::EmbeddingTable(const RowLayout& layout, KeyKind key_kind,
                               InitialRows initial_rows,
                               std::unique_ptr<RowStore> store)
    : dim_(layout.dim),
      key_kind_(key_kind),
      type_(layout.type),
      store_(std::move(store)),
      layout_(layout),
      new_tail_(layout.meta_words, 0.0f),
      initial_rows_(std::move(initial_rows)) {}

absl::Status EmbeddingTable::ReserveKeys(int64_t keys) {
  if (keys == 0) return absl::OkStatus();
  // Ask for all stripes at once: each writes to its pages before the next asks.
  constexpr int64_t kBytesPerKey = kLineBytes / HashIndex::kBucketPlaces;
  if (keys > std::numeric_limits<int64_t>::max() / kBytesPerKey) {
    return NoMemory(std::numeric_limits<int64_t>::max());
  }
  const absl::Status there = CheckMemory(keys * kBytesPerKey);
  if (!there.ok()) return there;
  const int64_t share = ShareOf(keys);
  for (TableStripe& stripe : stripes_) {
    const StripeLock lock(stripes_, stripe);
    absl::Status status = stripe.ReserveIndex(share);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

int64_t EmbeddingTable::size() const {
  // Count at one moment: keys that go and come meanwhile could exceed a bound.
  SharedLocks locks(stripes_);
  return stripes_.FirstKeys().back();
}

TableStats EmbeddingTable::stats() const {
  const SharedLocks locks(stripes_);
  TableStats stats;
  for (int s = 0; s < kNumStripes; ++s) {
    stats.size += stripes_.index(s).size();
    stats.capacity += stripes_.index(s).capacity();
  }
  stats.index_bytes = stripes_.bytes();
  stats.row_bytes = store_->num_rows() * store_->width() *
                    static_cast<int64_t>(sizeof(float));
  if (strings_ != nullptr) stats.index_bytes += strings_->bytes();
  return stats;
}

RowLayout EmbeddingTable::layout() const {
  const StripeReaderLock lock(stripes_, stripes_[0]);
  return layout_;
}

SlotLayout EmbeddingTable::slots() const {
  const StripeReaderLock lock(stripes_, stripes_[0]);
  return slots_;
}

absl::Status EmbeddingTable::SetSlots(const SlotLayout& layout) {
  absl::Status status = CheckSlotLayout(layout, type_);
  if (!status.ok()) return status;
  const WriterLock no_batches(&batches_);
  ExclusiveLocks locks(stripes_);
  std::vector<float> initial_slots;
  for (size_t s = 0; s < layout.initial_values.size(); ++s) {
    initial_slots.insert(initial_slots.end(),
                         SlotWidth(layout.row_wise, s, dim()),
                         layout.initial_values[s]);
  }
  if (layout.owner == slots_.owner && layout.names == slots_.names &&
      layout.row_wise == slots_.row_wise) {
    slots_ = layout;
    std::copy(initial_slots.begin(), initial_slots.end(), new_tail_.begin());
    return absl::OkStatus();
  }
  if (!slots_.owner.empty() || !slots_.names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("The table has the slots of '", slots_.owner,
                     "'; it cannot take those of '", layout.owner,
                     "' too. Use one optimizer per table, or a new table."));
  }
  status = store_->Replace(layout_.slots_begin(), 0, initial_slots);
  if (!status.ok()) return status;
  slots_ = layout;
  layout_.num_slots = static_cast<int64_t>(layout.names.size());
  layout_.row_wise = layout.row_wise;
  new_tail_.insert(new_tail_.begin(), initial_slots.begin(),
                   initial_slots.end());
  return absl::OkStatus();
}

absl::Status EmbeddingTable::DropSlots() {
  const WriterLock no_batches(&batches_);
  ExclusiveLocks locks(stripes_);
  const int64_t words = layout_.slot_words();
  if (words > 0) {  // Else each row would be copied as it is.
    const absl::Status status =
        store_->Replace(layout_.slots_begin(), words, {});
    if (!status.ok()) return status;
  }
  slots_ = SlotLayout();
  layout_.num_slots = 0;
  layout_.row_wise = 0;
  new_tail_.erase(new_tail_.begin(), new_tail_.begin() + words);
  ++drops_;
  return absl::OkStatus();
}

absl::Status EmbeddingTable::CheckDrops(uint32_t drops) const {
  if (drops_ == drops) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "The slots of the table were dropped while an update began, which did "
      "not change it. Attach an optimizer, and update again.");
}

uint64_t EmbeddingTable::seed() const {
  const StripeReaderLock lock(stripes_, stripes_[0]);
  return initial_rows_.seed();
}

void EmbeddingTable::SetSeed(uint64_t seed) {
  const WriterLock no_batches(&batches_);
  ExclusiveLocks locks(stripes_);
  initial_rows_ = initial_rows_.WithSeed(seed);
}

void EmbeddingTable::Clear() { ClearFor(0).IgnoreError(); }  // Needs no memory.

absl::Status EmbeddingTable::ClearFor(int64_t keys) {
  if (max_size_ > 0) keys = std::min(keys, max_size_);
  if (strings_ == nullptr) return ClearRowsFor(keys);
  absl::Status status;
  strings_->Clear([&] { status = ClearRowsFor(keys); });
  return status;
}

absl::Status EmbeddingTable::ClearRowsFor(int64_t keys) {
  const WriterLock no_batches(&batches_);
  ExclusiveLocks locks(stripes_);
  store_->Clear(keys);
  const int64_t share = keys == 0 ? 0 : ShareOf(keys);
  absl::Status status;
  for (TableStripe& stripe : stripes_) {
    stripe.mutex().AssertHeld();
    if (!admits_all_) stripe.mutable_filter()->Clear();
    if (status.ok()) status = stripe.ClearFor(share);
  }
  if (status.ok()) return status;
  for (TableStripe& stripe : stripes_) {
    stripe.mutex().AssertHeld();
    stripe.Clear();
  }
  store_->Clear();
  return status;
}

}  // namespace tfembed
