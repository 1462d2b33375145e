#include "cc/core/policies/worth_cut.h"

#include <algorithm>
#include <cstring>

namespace tfembed {
namespace {

// Numbers in the order of the worths.
uint64_t OrderOf(double worth) {
  worth += 0.0;  // -0 is 0.
  uint64_t bits;
  std::memcpy(&bits, &worth, sizeof(bits));
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

}  // namespace

WorthCut::WorthCut(int64_t most)
    : buckets_(std::make_unique<Buckets>()), wanted_(most) {
  Begin(0, ~uint64_t{0});
}

void WorthCut::Begin(uint64_t low, uint64_t high) {
  low_ = low;
  high_ = high;
  shift_ = 0;
  while ((high - low) >> shift_ >> kBucketBits != 0) ++shift_;
  buckets_->fill(Bucket());
}

void WorthCut::Note(double worth) {
  if (buckets_ == nullptr) return;
  const uint64_t order = OrderOf(worth);
  if (order < low_ || order > high_) return;
  Bucket& bucket = (*buckets_)[(order - low_) >> shift_];
  ++bucket.rows;
  bucket.least = std::min(bucket.least, order);
  bucket.most = std::max(bucket.most, order);
}

bool WorthCut::EndPass() {
  if (buckets_ == nullptr) return true;
  auto at = buckets_->rbegin();
  while (at != buckets_->rend() && at->rows < wanted_) {
    wanted_ -= at->rows;
    ++at;
  }
  if (at == buckets_->rend()) {  // All are kept.
    buckets_.reset();
    return true;
  }
  if (at->least < at->most) {
    Begin(at->least, at->most);
    return false;
  }
  cut_ = at->least;
  dropped_ = at->rows - wanted_;
  buckets_.reset();
  return true;
}

bool WorthCut::Keeps(double worth) {
  const uint64_t order = OrderOf(worth);
  if (order != cut_ || dropped_ == 0) return order >= cut_;
  --dropped_;
  return false;
}

}  // namespace tfembed
