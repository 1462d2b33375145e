// The limit of a hash table on this machine: a plain C++ program on the same
// keys, called through ctypes. Built with -march=native; not a part of the
// product.
//
// 16-byte slots {key, row} at a load of at most 0.6, linear probing, blocks of
// 32 keys prefetched, rows in one arena; both on huge pages, presized and
// touched. It cannot grow, takes no locks and knows how many keys will come.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kBlock = 32;

struct Slot {
  int64_t key;
  uint32_t row;
  uint32_t used;
};

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

void* HugeArena(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return memory;
}

template <typename Body>
void ForEachThread(int threads, int64_t n, Body body) {
  std::vector<std::thread> others;
  const int64_t share = (n + threads - 1) / threads;
  const auto run = [&](int t) {
    body(t, std::min(n, t * share), std::min(n, (t + 1) * share));
  };
  for (int t = 1; t < threads; ++t) others.emplace_back(run, t);
  run(0);
  for (auto& other : others) other.join();
}

}  // namespace

struct LimitTable {
  Slot* index = nullptr;
  float* rows = nullptr;
  uint64_t slots = 0;
  int64_t capacity = 0;
  int64_t width = 0;
};

namespace {

template <bool kWrite, int kWidth>
void Access(const LimitTable& table, const int64_t* keys, int64_t n,
            float* values) {
  const int64_t width = kWidth > 0 ? kWidth : table.width;
  const uint64_t mask = table.slots - 1;
  uint64_t at[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int m = static_cast<int>(std::min<int64_t>(kBlock, n - start));
    for (int j = 0; j < m; ++j) {
      at[j] = Mix(keys[start + j]) & mask;
      __builtin_prefetch(&table.index[at[j]]);
    }
    for (int j = 0; j < m; ++j) {
      const int64_t key = keys[start + j];
      while (table.index[at[j]].used && table.index[at[j]].key != key) {
        at[j] = (at[j] + 1) & mask;
      }
      const Slot& slot = table.index[at[j]];
      if (!slot.used) continue;
      const float* row = table.rows + slot.row * width;
      for (int c = 0; c < width; c += 16) __builtin_prefetch(row + c, kWrite);
    }
    for (int j = 0; j < m; ++j) {
      const Slot& slot = table.index[at[j]];
      float* value = values + (start + j) * width;
      float* row = table.rows + slot.row * width;
      const size_t bytes = width * sizeof(float);
      if (kWrite) {
        if (slot.used) std::memcpy(row, value, bytes);
      } else if (slot.used) {
        std::memcpy(value, row, bytes);
      } else {
        std::memset(value, 0, bytes);
      }
    }
  }
}

template <bool kWrite>
void AccessWidth(const LimitTable& table, const int64_t* keys, int64_t n,
                 float* values) {
  if (table.width == 8) return Access<kWrite, 8>(table, keys, n, values);
  if (table.width == 64) return Access<kWrite, 64>(table, keys, n, values);
  Access<kWrite, 0>(table, keys, n, values);
}

}  // namespace

extern "C" {

LimitTable* limit_new(int64_t capacity, int64_t width) {
  auto* table = new LimitTable;
  table->width = width;
  table->capacity = capacity;
  table->slots = 64;
  while (table->slots * 0.6 < capacity) table->slots *= 2;
  table->index = static_cast<Slot*>(HugeArena(table->slots * sizeof(Slot)));
  table->rows = static_cast<float*>(
      HugeArena(static_cast<size_t>(capacity) * width * sizeof(float)));
  return table;
}

void limit_delete(LimitTable* table) {
  munmap(table->index, table->slots * sizeof(Slot));
  munmap(table->rows, table->capacity * table->width * sizeof(float));
  delete table;
}

// Inserts distinct keys into the empty table. Each thread owns a part of the
// index; its keys are dealt to it before the clock starts: `parts[t]` of them,
// one thread's after the other's.
void limit_insert(LimitTable* table, const int64_t* keys, const int64_t* parts,
                  int threads, const float* values, int64_t num_values) {
  constexpr int64_t kAhead = 16;
  const uint64_t mask = table->slots - 1;
  const int64_t width = table->width;
  std::vector<int64_t> begins(threads + 1, 0);
  for (int t = 0; t < threads; ++t) begins[t + 1] = begins[t] + parts[t];
  ForEachThread(threads, threads, [&](int t, int64_t, int64_t) {
    for (int64_t i = begins[t]; i < begins[t + 1]; ++i) {
      if (i + kAhead < begins[t + 1]) {
        __builtin_prefetch(&table->index[Mix(keys[i + kAhead]) & mask], 1);
      }
      uint64_t at = Mix(keys[i]) & mask;
      while (table->index[at].used) at = (at + 1) & mask;
      table->index[at] = {keys[i], static_cast<uint32_t>(i), 1};
      std::memcpy(table->rows + i * width, values + (i % num_values) * width,
                  width * sizeof(float));
    }
  });
}

// The thread that owns a key: the top bits of its first slot.
void limit_owners(const LimitTable* table, const int64_t* keys, int64_t n,
                  int threads, int32_t* owners) {
  const uint64_t mask = table->slots - 1;
  for (int64_t i = 0; i < n; ++i) {
    owners[i] =
        static_cast<int32_t>((Mix(keys[i]) & mask) * threads / table->slots);
  }
}

void limit_access(const LimitTable* table, const int64_t* keys, int64_t n,
                  float* values, int threads, int write) {
  ForEachThread(threads, n, [&](int, int64_t begin, int64_t end) {
    float* part = values + begin * table->width;
    if (write) {
      AccessWidth<true>(*table, keys + begin, end - begin, part);
    } else {
      AccessWidth<false>(*table, keys + begin, end - begin, part);
    }
  });
}

// Nanoseconds that a word takes from one thread to another and back: some 90
// where their cores share a cache, 400 where they do not. A virtual machine's
// cores may do so in one minute and not in the next.
double limit_round_trip() {
  constexpr int kTrips = 20000;
  alignas(64) std::atomic<int> word{0};
  std::thread other([&] {
    for (int i = 1; i < 2 * kTrips; i += 2) {
      while (word.load(std::memory_order_acquire) != i) {
      }
      word.store(i + 1, std::memory_order_release);
    }
  });
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2 * kTrips; i += 2) {
    word.store(i + 1, std::memory_order_release);
    while (word.load(std::memory_order_acquire) != i + 2) {
    }
  }
  const std::chrono::duration<double, std::nano> taken =
      std::chrono::steady_clock::now() - start;
  other.join();
  return taken.count() / kTrips;
}

}  // extern "C"
