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

// Rows that are asked for before they are needed.
template <int D>
constexpr int kAhead = D <= 16 ? 24 : 12;
template <int D>
constexpr int kUpdateAhead = D <= 16 ? 16 : 8;

template <typename Body>
void ForEach(int threads, int tasks, Body body) {
  std::atomic<int> next{0};
  auto work = [&](int thread) {
    for (int i; (i = next.fetch_add(1)) < tasks;) body(i, thread);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& other : others) other.join();
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
      if (i + kAhead<D> < end) {
        PrefetchRow<D>(table + b.ids[i + kAhead<D>] * D);
      }
      const float* row = table + b.ids[i] * D;
      for (int c = 0; c < D; ++c) sum[c] += row[c];
    }
    const int64_t n = splits[bag + 1] - splits[bag];
    const float scale = n ? 1.0f / n : 0.0f;
    float* to = out + (static_cast<int64_t>(bag) * b.features + feature) * D;
    for (int c = 0; c < D; ++c) to[c] = sum[c] * scale;
  }
}

// A thread's buffers, kept from step to step.
struct Scratch {
  std::vector<uint64_t> entries, spare;
};

// (id << 32 | bag), sorted by id.
void SortEntries(const Batch& b, int feature, std::vector<uint64_t>* entries,
                 std::vector<uint64_t>* spare) {
  const int64_t* splits = b.splits + static_cast<int64_t>(feature) * b.batch;
  entries->clear();
  for (int bag = 0; bag < b.batch; ++bag) {
    for (int64_t i = splits[bag]; i < splits[bag + 1]; ++i) {
      entries->push_back(static_cast<uint64_t>(b.ids[i]) << 32 | bag);
    }
  }
  spare->resize(entries->size());
  for (int shift = 32; shift < 52; shift += 10) {
    uint32_t at[1025] = {};
    for (uint64_t e : *entries) ++at[(e >> shift & 1023) + 1];
    for (int i = 0; i < 1024; ++i) at[i + 1] += at[i];
    for (uint64_t e : *entries) (*spare)[at[e >> shift & 1023]++] = e;
    entries->swap(*spare);
  }
}

template <int D>
void Update(const Batch& b, float* tables, float* accumulators,
            const float* gradients, int feature, Scratch* scratch) {
  std::vector<uint64_t>& entries = scratch->entries;
  SortEntries(b, feature, &entries, &scratch->spare);
  const int64_t* splits = b.splits + static_cast<int64_t>(feature) * b.batch;
  float* table = tables + feature * b.vocabulary * D;
  float* slots = accumulators + feature * b.vocabulary * D;
  const size_t n = entries.size();
  for (size_t i = 0; i < n;) {
    const uint64_t id = entries[i] >> 32;
    float g[D] = {};
    for (; i < n && entries[i] >> 32 == id; ++i) {
      if (i + kUpdateAhead<D> < n) {
        const uint64_t ahead = entries[i + kUpdateAhead<D>];
        if (ahead >> 32 != id) {
          PrefetchRowForWrite<D>(table + (ahead >> 32) * D);
          PrefetchRowForWrite<D>(slots + (ahead >> 32) * D);
        }
        PrefetchRow<D>(gradients +
                       ((ahead & 0xffffffff) * b.features + feature) * D);
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
      w[c] -= 0.01f * g[c] / (std::sqrt(a[c]) + 1e-7f);
    }
  }
}

template <int D>
void Step(int threads, const Batch& b, float* tables, float* accumulators,
          float* out, const float* gradients) {
  ForEach(threads, b.features,
          [&](int f, int) { Forward<D>(b, tables, out, f); });
  if (gradients == nullptr) return;
  static std::vector<Scratch> scratch;
  scratch.resize(threads);
  ForEach(threads, b.features, [&](int f, int thread) {
    Update<D>(b, tables, accumulators, gradients, f, &scratch[thread]);
  });
}

}  // namespace

extern "C" {

// Forward, and with `gradients` also backward and Adagrad. Width 16, 64 or 128;
// returns 0 for other widths.
int limit_step(int width, int threads, const int64_t* ids,
               const int64_t* splits, int features, int batch,
               int64_t vocabulary, float* tables, float* accumulators,
               float* out, const float* gradients) {
  const Batch b{ids, splits, features, batch, vocabulary};
  const auto step = width == 16    ? Step<16>
                    : width == 64  ? Step<64>
                    : width == 128 ? Step<128>
                                   : nullptr;
  if (step == nullptr) return 0;
  step(threads, b, tables, accumulators, out, gradients);
  return 1;
}

}  // extern "C"
