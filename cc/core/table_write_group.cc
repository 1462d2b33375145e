// A batch's rows of one stripe: found or made, and written.
#include <algorithm>
#include <vector>

#include "cc/core/row_writes.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/striped_table.h"
#include "cc/core/support/has_nan.h"
#include "cc/core/support/known_bytes.h"
#include "cc/core/support/overlap.h"

namespace tfembed {
namespace {

// Given rows are asked for late: their lines would take the place of rows in
// the table. Those of more lines than one, so many keys ahead and between two
// copies, where no other misses are asked for: 0.8 of the time at 64 floats on
// Zen 5. 8 keys ahead took 1.1 times as long.
constexpr int64_t kWideBytes = 128;
constexpr int64_t kGivenAhead = 16;

// From here on a call with the widest instructions there are is worth it: 0.8
// of the time at 64 floats on Zen 5; the same at 16 and 32, where the loops
// have a known length and the rows are what takes the time.
constexpr int64_t kCalledBytes = 256;

// What is to be done with a row, once the memory has brought it.
struct PendingWrite {
  enum class Action { kNone, kCopy, kCopyToNew, kAdd };

  const HashIndex::Bucket* home;
  Action action;
  float* to;
};

}  // namespace

void StripedTable::AddValue(const RowWrites& writes, uint32_t position,
                            int64_t key, float* row) const {
  const char* const from = writes.row(position);
  const char* const old =
      writes.old_rows == nullptr ? nullptr : writes.old_row(position);
  if (!writes.rounding.by_chance()) {
    old == nullptr ? type_.Add(from, row, dim_)
                   : type_.AddChange(from, old, row, dim_);
  } else {
    std::vector<float> sum(dim_), added(dim_);
    type_.ToFloats(row, sum.data(), dim_);
    type_.ToFloats(from, added.data(), dim_);
    AddRow(added.data(), sum.data(), dim_);
    if (old != nullptr) {
      type_.ToFloats(old, added.data(), dim_);
      for (int64_t c = 0; c < dim_; ++c) sum[c] -= added[c];
    }
    writes.rounding.Round(sum.data(), dim_, key, position, row);
  }
}

// What is known of a write when it is compiled: values of float32, and no
// eviction policy that notes what is written.
enum class StripedTable::KnownWrite { kUpsert, kAccum, kNothing };

void StripedTable::WriteGroup(const KeyGroup& group, const RowWrites& writes,
                              float** written, TableStripe* stripe) {
  using Kind = RowWrites::Kind;
  const bool plain = type_.is_float32() && !touches_;
  if (plain && writes.kind == Kind::kUpsert) {
    WithKnownBytes(writes.bytes, [&](auto bytes) {
      WriteGroupAs<KnownWrite::kUpsert, bytes>(group, writes, written, stripe);
    });
  } else if (plain && writes.kind == Kind::kAccum) {
    WithKnownBytes(writes.bytes, [&](auto bytes) {
      WriteGroupAs<KnownWrite::kAccum, bytes>(group, writes, written, stripe);
    });
  } else {
    WriteGroupAs<KnownWrite::kNothing, 0>(group, writes, written, stripe);
  }
}

// Keys are settled and written in the order of the batch: the last one wins.
template <StripedTable::KnownWrite kKnown, int64_t kBytes>
void StripedTable::WriteGroupAs(const KeyGroup& group, const RowWrites& writes,
                                float** written, TableStripe* stripe) {
  using Action = PendingWrite::Action;
  constexpr bool kAny = kKnown == KnownWrite::kNothing;
  RowStore* const store = store_.get();
  const HashIndex& index = stripe->index();
  AdmissionFilter* const filter = filters_[stripe - stripes_.data()].get();
  const bool accum = kKnown == KnownWrite::kAccum ||
                     (kAny && writes.kind == RowWrites::Kind::kAccum);
  const bool whole_row = kAny && writes.kind == RowWrites::Kind::kImport;
  const bool trained = kAny && writes.is_trained();
  const bool touches = kAny && touches_;
  const int64_t bytes = kBytes > 0 ? kBytes : writes.bytes;
  const int64_t dim = kBytes > 0 ? kBytes / RowLayout::kWordBytes : dim_;
  const int64_t words =
      touches ? layout_.width() : (bytes + 3) / RowLayout::kWordBytes;
  const bool looks_for_nan =
      kKnown == KnownWrite::kUpsert ||
      (kAny && writes.kind == RowWrites::Kind::kUpsert && type_.is_float32());
  const bool looks_for_other_nan =
      kAny && writes.kind == RowWrites::Kind::kUpsert && !type_.is_float32();
  int64_t nan_rows = 0;
  const bool touches_later = touches && eviction_->counts();
  int64_t num_written = 0;
  const auto note = [&](float* row) {
    whole_row ? TakeNote(writes.now, row) : Touch(writes.now, row);
  };
  PendingWrite pending[kOverlap];
  const auto from = [&](int64_t i) {
    return static_cast<const char*>(writes.rows) + group.positions[i] * bytes;
  };
  const auto floats_from = [&](int64_t i) {
    return reinterpret_cast<const float*>(from(i));
  };
  const auto old = [&](int64_t i) {
    return reinterpret_cast<const float*>(writes.old_row(group.positions[i]));
  };
  // Always inline, as PrefetchRow: else GCC takes its calls out.
  const auto ask_for_given = [&](int64_t i) ABSL_ATTRIBUTE_ALWAYS_INLINE {
    PrefetchRow(from(i), words);
    if (writes.old_rows != nullptr) PrefetchRow(old(i), words);
  };
  const Kernels& kernels = ActiveKernels();
  const bool called = bytes >= kCalledBytes;
  const auto copy_row_has_nan = [&](const float* given, float* row) {
    return called ? kernels.copy_row_has_nan(given, row, dim)
                  : CopyRowHasNan(given, row, dim);
  };
  const auto add = [&](int64_t i, float* row) {
    if (writes.old_rows == nullptr) {
      called ? kernels.add_row(floats_from(i), row, dim)
             : AddRow(floats_from(i), row, dim);
    } else {
      called ? kernels.add_change(floats_from(i), old(i), row, dim)
             : AddChange(floats_from(i), old(i), row, dim);
    }
  };
  const auto set_row = [&](int64_t i, uint32_t row, Action action) {
    PendingWrite& write = pending[Slot(i)];
    write.action = action;
    write.to = store->Row(row);
    if (!writes.streams || action != Action::kCopyToNew) {
      PrefetchRow(write.to, dim);
    }
  };
  // A key that is there.
  const auto set_present = [&](int64_t i, uint32_t row) {
    set_row(i, row,
            !accum                              ? Action::kCopy
            : writes.exists[group.positions[i]] ? Action::kAdd
                                                : Action::kNone);
  };
  const bool wide = bytes >= kWideBytes;
  for (int64_t i = 0; wide && i < std::min(kGivenAhead, group.size); ++i) {
    ask_for_given(i);
  }
  Overlap(
      group.size,
      [&](int64_t i) {
        pending[Slot(i)].home = index.Home(HashKey(group.keys[i]));
        HashIndex::Prefetch(pending[Slot(i)].home);
      },
      [&](int64_t i) {
        PendingWrite& write = pending[Slot(i)];
        write.action = Action::kNone;
        const uint32_t row = HashIndex::FindIn(*write.home, group.keys[i]);
        if (row != HashIndex::kNoRow) {
          set_present(i, row);
          write.home = nullptr;  // Settled.
        } else {
          HashIndex::PrefetchPast(*write.home);
        }
      },
      [&](int64_t i) {
        if (!wide) ask_for_given(i);
        if (pending[Slot(i)].home == nullptr) return;
        const int64_t key = group.keys[i];
        bool inserted = false;
        const uint32_t row =
            !accum || writes.Inserts(group.positions[i])
                ? stripe->FindOrInsert(HashKey(key), key, store, &inserted)
                : stripe->Find(HashKey(key), key);
        if (inserted) {
          if (filter != nullptr) filter->Forget(HashKey(key), key);
          set_row(i, row, Action::kCopyToNew);
        } else if (row != HashIndex::kNoRow) {
          set_present(i, row);
        }
      },
      [&](int64_t i) {
        if (wide && i + kGivenAhead < group.size) {
          ask_for_given(i + kGivenAhead);
        }
        const PendingWrite& write = pending[Slot(i)];
        if (write.action == Action::kNone) return;
        const bool is_new = write.action == Action::kCopyToNew;
        if (looks_for_other_nan) nan_rows += type_.HasNan(from(i), dim);
        if (is_new && !whole_row) FillNewTail(write.to);
        if (kKnown == KnownWrite::kAccum && write.action == Action::kAdd) {
          add(i, write.to);
        } else if (write.action == Action::kAdd) {
          AddValue(writes, group.positions[i], group.keys[i], write.to);
        } else if (trained) {
          WriteTrainedRow(writes, group.positions[i], group.keys[i], is_new,
                          write.to);
        } else if (is_new && writes.streams) {
          StreamRow(from(i), write.to, bytes);
          if (looks_for_nan) {
            nan_rows += HasNan(floats_from(i), dim);
          }
        } else if (looks_for_nan) {
          nan_rows += copy_row_has_nan(floats_from(i), write.to);
        } else {
          CopyBytes(from(i), write.to, bytes);
        }
        if (touches) {
          if (touches_later) {
            written[num_written++] = write.to;
          } else {
            note(write.to);
          }
        }
      });
  if (writes.streams) StreamedRows();
  nan_rows_.Add(nan_rows);
  if (!touches_later) return;
  std::sort(written, written + num_written);  // Once each, repeated or not.
  float** const end = std::unique(written, written + num_written);
  for (float** row = written; row < end; ++row) note(*row);
}

}  // namespace tfembed
