// Refuses memory to tfembed's libraries, and to nobody else in the process.
//
// Loaded first (LD_PRELOAD), it stands before the operator new of the C++
// library. Calls that come from the libraries are counted, and from one of them
// on a number of them throws std::bad_alloc.
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr int kMostParts = 32;
struct {
  uintptr_t begin;
  uintptr_t end;
} parts[kMostParts];
int num_parts = 0;

std::atomic<int64_t> calls{0};
std::atomic<int64_t> first{0};
std::atomic<int64_t> last{0};

int AddParts(dl_phdr_info* info, size_t, void*) {
  if (std::strstr(info->dlpi_name, "/_tfembed_") == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum && num_parts < kMostParts; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    parts[num_parts++] = {begin, begin + part.p_memsz};
  }
  return 0;
}

bool IsRefused(const void* caller) {
  if (last.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < num_parts; ++i) {
    if (address < parts[i].begin || address >= parts[i].end) continue;
    const int64_t call = ++calls;
    return first <= call && call <= last;
  }
  return false;
}

void* New(std::size_t bytes, std::size_t alignment, const void* caller) {
  void* memory = nullptr;
  if (!IsRefused(caller)) {
    if (bytes == 0) bytes = 1;
    if (alignment <= alignof(std::max_align_t)) {
      memory = std::malloc(bytes);
    } else if (posix_memalign(&memory, alignment, bytes) != 0) {
      memory = nullptr;
    }
  }
  return memory;
}

void* NewOrThrow(std::size_t bytes, std::size_t alignment, const void* caller) {
  void* const memory = New(bytes, alignment, caller);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define CALLER __builtin_return_address(0)

void* operator new(std::size_t n) { return NewOrThrow(n, 1, CALLER); }
void* operator new[](std::size_t n) { return NewOrThrow(n, 1, CALLER); }
void* operator new(std::size_t n, std::align_val_t a) {
  return NewOrThrow(n, static_cast<std::size_t>(a), CALLER);
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return NewOrThrow(n, static_cast<std::size_t>(a), CALLER);
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return New(n, 1, CALLER);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return New(n, 1, CALLER);
}

extern "C" {

// Refuses the calls from `begin`, of 1 or more, to `end`.
void refuse_new(int64_t begin, int64_t end) {
  if (num_parts == 0) dl_iterate_phdr(AddParts, nullptr);
  calls = 0;
  first = begin;
  last = end;
}

// Refuses none any more. How many calls there were.
int64_t end_refusals() {
  last = 0;
  return calls;
}
}
