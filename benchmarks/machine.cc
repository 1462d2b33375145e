// What this machine gives, called through ctypes: how fast its cores bring
// lines of the caches from random places, write them, and move bytes one after
// the other. No work is done on what is moved, so a program that needs these
// lines and bytes takes longer. Built with -march=native; not a part of the
// product.
//
// A round is some batches. Each thread moves its share of all batches, one
// after the other, without waiting for the others in between.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kLine = 64;

using Clock = std::chrono::steady_clock;

// Keeps sums of what was read from being left out.
std::atomic<uint64_t> sink;

// Seconds from when all threads are there until the last one has done.
template <typename Body>
double TimeThreads(int threads, Body body) {
  std::atomic<int> waiting{threads};
  std::vector<Clock::time_point> begins(threads), ends(threads);
  const auto work = [&](int t) {
    waiting.fetch_sub(1);
    while (waiting.load() > 0) std::this_thread::yield();
    begins[t] = Clock::now();
    sink.fetch_add(body(t), std::memory_order_relaxed);
    ends[t] = Clock::now();
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& other : others) other.join();
  const std::chrono::duration<double> taken =
      *std::max_element(ends.begin(), ends.end()) -
      *std::min_element(begins.begin(), begins.end());
  return taken.count();
}

void WriteLine(char* line, bool past_caches) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(line);
  for (int i = 0; i < 8; ++i) {
#if defined(__SSE2__)
    if (past_caches) {
      __builtin_ia32_movnti64(reinterpret_cast<long long*>(words + i), 1);
      continue;
    }
#endif
    words[i] = 1;
  }
}

void Fence() {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}

// What is done to a line, and how lines are asked for: by the numbers below.
enum Kind { kRead = 0, kUpdate = 1, kOverwrite = 2 };

struct Way {
  int ahead;  // Lines that are asked for before they are needed.
  int cache;  // Into the first or the second one.
};
constexpr Way kWays[] = {{0, 1},  {16, 1}, {32, 1},  {64, 1}, {128, 1},
                         {32, 2}, {64, 2}, {128, 2}, {256, 2}};
constexpr int kNumWays = sizeof(kWays) / sizeof(kWays[0]);

template <Kind kind, int cache>
inline void Ask(const char* line) {
  if (cache == 2) {
    __builtin_prefetch(line, 0, 2);
  } else {
    __builtin_prefetch(line, kind == kRead ? 0 : 1, 3);
  }
}

// Stretches of `lines` lines each, which begin at lines `first`.
template <Kind kind, int cache>
uint64_t MoveStretches(char* arena, const uint32_t* first, int64_t n,
                       int64_t lines, int64_t ahead) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (ahead > 0 && i + ahead < n) {
      const char* const next = arena + first[i + ahead] * kLine;
      for (int64_t l = 0; l < lines; ++l) Ask<kind, cache>(next + l * kLine);
    }
    char* const stretch = arena + first[i] * kLine;
    for (int64_t l = 0; l < lines; ++l) {
      uint64_t* const word = reinterpret_cast<uint64_t*>(stretch + l * kLine);
      if (kind == kRead) sum += *word;
      if (kind == kUpdate) *word += 1;
      if (kind == kOverwrite) WriteLine(stretch + l * kLine, ahead == 0);
    }
  }
  if (kind == kOverwrite) Fence();
  return sum;
}

using Mover = uint64_t (*)(char*, const uint32_t*, int64_t, int64_t, int64_t);

Mover MoverOf(int kind, int cache) {
  if (kind == kRead) {
    return cache == 1 ? MoveStretches<kRead, 1> : MoveStretches<kRead, 2>;
  }
  if (kind == kUpdate) {
    return cache == 1 ? MoveStretches<kUpdate, 1> : MoveStretches<kUpdate, 2>;
  }
  return cache == 1 ? MoveStretches<kOverwrite, 1>
                    : MoveStretches<kOverwrite, 2>;
}

uint64_t ReadBytes(const char* bytes, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t i = (begin + 7) / 8; i < end / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * 8, sizeof(word));
    sum += word;
  }
  return sum;
}

void WriteBytes(char* bytes, int64_t begin, int64_t end, bool past_caches) {
  begin = (begin + kLine - 1) / kLine * kLine;
  for (int64_t at = begin; at + kLine <= end; at += kLine) {
    WriteLine(bytes + at, past_caches);
  }
}

}  // namespace

extern "C" {

int machine_num_ways() { return kNumWays; }

// Memory on huge pages; written to unless it is to be fresh.
char* machine_arena(int64_t bytes, int fresh) {
  constexpr int64_t kHuge = int64_t{2} << 20;
  char* const memory = static_cast<char*>(
      mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) return nullptr;
  const int64_t skipped = -reinterpret_cast<int64_t>(memory) & (kHuge - 1);
  char* const arena = memory + skipped;
  munmap(memory, skipped);
  munmap(arena + bytes, kHuge - skipped);
  madvise(arena, bytes, MADV_HUGEPAGE);
  if (!fresh) std::memset(arena, 1, bytes);
  return arena;
}

void machine_free(char* arena, int64_t bytes) { munmap(arena, bytes); }

// Seconds a round of `batches` takes whose stretches begin at lines
// first[begins[b]] ... first[begins[b + 1] - 1] of each of the arenas.
double machine_lines(char* const* arenas, int num_arenas, const uint32_t* first,
                     const int64_t* begins, int batches, int lines, int kind,
                     int way, int threads) {
  const Mover move = MoverOf(kind, kWays[way].cache);
  const int64_t ahead = (kWays[way].ahead + lines - 1) / lines;
  return TimeThreads(threads, [&](int t) {
    uint64_t sum = 0;
    for (int b = 0; b < batches; ++b) {
      const int64_t n = begins[b + 1] - begins[b];
      const int64_t from = begins[b] + n * t / threads;
      const int64_t to = begins[b] + n * (t + 1) / threads;
      for (int a = 0; a < num_arenas; ++a) {
        sum += move(arenas[a], first + from, to - from, lines, ahead);
      }
    }
    return sum;
  });
}

// Seconds a round takes that reads `read` (all batches, one after the other)
// once and, once a batch, reads `again` and writes `written`.
double machine_stream(const char* read, int64_t read_bytes, const char* again,
                      int64_t again_bytes, char* written, int64_t written_bytes,
                      int batches, int past_caches, int threads) {
  const int64_t parts = int64_t{batches} * threads;
  return TimeThreads(threads, [&](int t) {
    uint64_t sum = 0;
    for (int b = 0; b < batches; ++b) {
      const int64_t part = int64_t{b} * threads + t;
      sum += ReadBytes(read, read_bytes * part / parts,
                       read_bytes * (part + 1) / parts);
      sum += ReadBytes(again, again_bytes * t / threads,
                       again_bytes * (t + 1) / threads);
      WriteBytes(written, written_bytes * t / threads,
                 written_bytes * (t + 1) / threads, past_caches != 0);
    }
    Fence();
    return sum;
  });
}

// Nanoseconds that a word takes from one thread to another and back: some 90
// where their cores share a cache, 400 where they do not. A virtual machine's
// cores may do so in one minute and not in the next.
double machine_round_trip() {
  constexpr int kTrips = 20000;
  alignas(64) std::atomic<int> word{0};
  std::thread other([&] {
    for (int i = 1; i < 2 * kTrips; i += 2) {
      while (word.load(std::memory_order_acquire) != i) {
      }
      word.store(i + 1, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  for (int i = 0; i < 2 * kTrips; i += 2) {
    word.store(i + 1, std::memory_order_release);
    while (word.load(std::memory_order_acquire) != i + 2) {
    }
  }
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  other.join();
  return taken.count() / kTrips;
}

}  // extern "C"
