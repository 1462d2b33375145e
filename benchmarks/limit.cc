// What plain C++ reaches on this machine: the physical limit that the Python
// benchmarks print beside TensorFlow and tfembed, called through ctypes on the
// same ids. Built with -march=native; not a part of the product.
//
// Lookup: one pass per feature with software prefetch. Training: forward, then
// per feature a radix sort of (id, bag), a segment sum and one
// read-modify-write per distinct row (exact Adagrad).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 2;
constexpr int kLookahead = 12;

template <typename Body>
void ForEach(int tasks, Body body) {
  std::atomic<int> next{0};
  auto work = [&] {
    for (int i; (i = next.fetch_add(1)) < tasks;) body(i);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < kThreads; ++t) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
}

template <int D>
void PrefetchRow(const float* row) {
  for (int c = 0; c < D; c += 16) __builtin_prefetch(row + c);
}

template <int D>
void PrefetchRowForWrite(const float* row) {
  for (int c = 0; c < D; c += 16) __builtin_prefetch(row + c, 1);
}

struct Batch {
  const int64_t* ids;
  const int64_t* splits;  // features * batch + 1.
  int features;
  int batch;
  int64_t vocabulary;
};

template <int D>
void Forward(const Batch& b, const float* tables, float* out, int feature) {
  const float* table = tables + feature * b.vocabulary * D;
  const int64_t* splits = b.splits + static_cast<int64_t>(feature) * b.batch;
  const int64_t end = splits[b.batch];
  for (int bag = 0; bag < b.batch; ++bag) {
    float sum[D] = {};
    for (int64_t i = splits[bag]; i < splits[bag + 1]; ++i) {
      if (i + kLookahead < end)
        PrefetchRow<D>(table + b.ids[i + kLookahead] * D);
      const float* row = table + b.ids[i] * D;
      for (int c = 0; c < D; ++c) sum[c] += row[c];
    }
    const int64_t n = splits[bag + 1] - splits[bag];
    const float scale = n ? 1.0f / n : 0.0f;
    float* to = out + (static_cast<int64_t>(bag) * b.features + feature) * D;
    for (int c = 0; c < D; ++c) to[c] = sum[c] * scale;
  }
}

// (id << 32 | bag), sorted by id.
void SortEntries(const Batch& b, int feature, std::vector<uint64_t>* entries) {
  const int64_t* splits = b.splits + static_cast<int64_t>(feature) * b.batch;
  entries->clear();
  for (int bag = 0; bag < b.batch; ++bag) {
    for (int64_t i = splits[bag]; i < splits[bag + 1]; ++i) {
      entries->push_back(static_cast<uint64_t>(b.ids[i]) << 32 | bag);
    }
  }
  std::vector<uint64_t> other(entries->size());
  for (int shift = 32; shift < 52; shift += 10) {
    uint32_t at[1025] = {};
    for (uint64_t e : *entries) ++at[(e >> shift & 1023) + 1];
    for (int i = 0; i < 1024; ++i) at[i + 1] += at[i];
    for (uint64_t e : *entries) other[at[e >> shift & 1023]++] = e;
    entries->swap(other);
  }
}

template <int D>
void Update(const Batch& b, float* tables, float* accumulators,
            const float* gradients, int feature) {
  thread_local std::vector<uint64_t> entries;
  SortEntries(b, feature, &entries);
  const int64_t* splits = b.splits + static_cast<int64_t>(feature) * b.batch;
  float* table = tables + feature * b.vocabulary * D;
  float* slots = accumulators + feature * b.vocabulary * D;
  const size_t n = entries.size();
  for (size_t i = 0; i < n;) {
    const uint64_t id = entries[i] >> 32;
    float g[D] = {};
    for (; i < n && entries[i] >> 32 == id; ++i) {
      if (i + kLookahead < n) {
        const uint64_t ahead = entries[i + kLookahead] >> 32;
        PrefetchRowForWrite<D>(table + ahead * D);
        PrefetchRowForWrite<D>(slots + ahead * D);
      }
      const int64_t bag = entries[i] & 0xffffffff;
      const float scale = 1.0f / (splits[bag + 1] - splits[bag]);
      const float* from = gradients + (bag * b.features + feature) * D;
      for (int c = 0; c < D; ++c) g[c] += from[c] * scale;
    }
    float* w = table + id * D;
    float* a = slots + id * D;
    for (int c = 0; c < D; ++c) {
      a[c] += g[c] * g[c];
      w[c] -= 0.01f * g[c] / std::sqrt(a[c]);
    }
  }
}

template <int D>
void Step(const Batch& b, float* tables, float* accumulators, float* out,
          const float* gradients) {
  ForEach(b.features, [&](int f) { Forward<D>(b, tables, out, f); });
  if (gradients == nullptr) return;
  ForEach(b.features,
          [&](int f) { Update<D>(b, tables, accumulators, gradients, f); });
}

}  // namespace

extern "C" {

// Forward, and with `gradients` also backward and Adagrad. Width 16 or 64;
// returns 0 for other widths.
int limit_step(int width, const int64_t* ids, const int64_t* splits,
               int features, int batch, int64_t vocabulary, float* tables,
               float* accumulators, float* out, const float* gradients) {
  const Batch b{ids, splits, features, batch, vocabulary};
  if (width == 16) {
    Step<16>(b, tables, accumulators, out, gradients);
  } else if (width == 64) {
    Step<64>(b, tables, accumulators, out, gradients);
  } else {
    return 0;
  }
  return 1;
}

}  // extern "C"
