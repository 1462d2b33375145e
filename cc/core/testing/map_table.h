#ifndef TFEMBED_CORE_TESTING_MAP_TABLE_H_
#define TFEMBED_CORE_TESTING_MAP_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/core/rows/rows.h"

namespace tfembed {

// The simplest table that inserts: a std::map per part. Ranks are ids times an
// odd number, so that neighbours are far from each other.
class MapTable final : public RowSource, public RowSink, private TableHold {
 public:
  MapTable(int64_t dim, std::vector<float> slot_initial_values)
      : dim_(dim), slots_(std::move(slot_initial_values)) {}

  static constexpr int kParts = 8;
  static constexpr float kInitialValue = 0.25f;

  int64_t dim() const override { return dim_; }

  absl::StatusOr<int64_t> Locate(const int64_t* ids, int64_t n,
                                 const float** rows) const override {
    for (int64_t i = 0; i < n; ++i) rows[i] = Find(ids[i]);
    return std::count(rows, rows + n, nullptr);
  }
  void FillMissing(int64_t id, float* row) const override {
    for (int64_t c = 0; c < dim_; ++c) row[c] = kInitialValue + 1e-3f * id;
  }

  int num_parts() const override { return kParts; }
  void Ranks(const int64_t* ids, int64_t n, uint64_t* ranks) const override {
    for (int64_t i = 0; i < n; ++i) {
      ranks[i] = static_cast<uint64_t>(ids[i]) * 0x9e3779b97f4a7c15u;
    }
  }
  uint64_t rank_limit() const override { return 0; }
  absl::Status Check(const int64_t*, int64_t) const override {
    return absl::OkStatus();
  }
  void Lock(int part) override { mutexes_[part].lock(); }
  void Unlock(int part) override { mutexes_[part].unlock(); }

  // Parts whose room is limited, for tests of failure.
  std::vector<int64_t> max_new_ids = std::vector<int64_t>(kParts, 1 << 20);

  absl::Status Reserve(int part, const int64_t* ids, int64_t n) override {
    int64_t new_ids = n;
    if (ids != nullptr) {
      new_ids = std::count_if(ids, ids + n,
                              [&](int64_t id) { return Find(id) == nullptr; });
    }
    if (new_ids <= max_new_ids[part]) return absl::OkStatus();
    return absl::ResourceExhaustedError("The part is full.");
  }

  // Ids that are refused where they are missing, for tests of admission.
  std::set<int64_t> refused_ids;

  TableHold* hold() override { return this; }

  bool refuses() const override { return !refused_ids.empty(); }

  void FindOrInsert(int part, const int64_t* ids, int64_t n,
                    MutableRow* rows) override {
    for (int64_t i = 0; i < n; ++i) {
      rows[i].value = nullptr;
      if (refused_ids.count(ids[i]) > 0) continue;
      auto [found, is_new] = rows_[part].try_emplace(ids[i]);
      std::vector<float>& row = found->second;
      if (is_new) {
        row.resize(dim_ * (1 + slots_.size()));
        FillMissing(ids[i], row.data());
        for (size_t s = 0; s < slots_.size(); ++s) {
          std::fill_n(row.data() + dim_ * (1 + s), dim_, slots_[s]);
        }
      }
      rows[i].value = row.data();
      for (size_t s = 0; s < slots_.size(); ++s) {
        rows[i].slots[s] = row.data() + dim_ * (1 + s);
      }
    }
  }

  int64_t num_slices() const override { return kParts; }
  void VisitSlice(int64_t slice, const RowVisitor& visit) override {
    std::lock_guard<std::mutex> lock(mutexes_[slice]);
    for (auto& [key, row] : rows_[slice]) {
      int64_t id = key;
      MutableRow view;
      view.value = row.data();
      for (size_t s = 0; s < slots_.size(); ++s) {
        view.slots[s] = row.data() + dim_ * (1 + s);
      }
      visit(absl::MakeSpan(&id, 1), &view);
    }
  }

  // The full row, value and slots, or null.
  const float* Find(int64_t id) const {
    const auto& part = rows_[PartOf(Rank(id))];
    const auto found = part.find(id);
    return found == part.end() ? nullptr : found->second.data();
  }

  int64_t size() const {
    int64_t size = 0;
    for (const auto& part : rows_) size += part.size();
    return size;
  }

 private:
  uintptr_t order() const override { return reinterpret_cast<uintptr_t>(this); }
  bool is_bounded() const override { return false; }
  absl::Status Pin(absl::Span<const int64_t>) override {
    return absl::OkStatus();
  }
  void MakeRoom() override {}

  const int64_t dim_;
  const std::vector<float> slots_;
  std::map<int64_t, std::vector<float>> rows_[kParts];
  std::mutex mutexes_[kParts];
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_MAP_TABLE_H_
