#ifndef TFEMBED_CORE_TESTING_REFUSED_MEMORY_H_
#define TFEMBED_CORE_TESTING_REFUSED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

// Replaces the operators new of a test: to be included by one file of it, which
// says from how many bytes on they have no memory.
namespace {

std::atomic<size_t> refused_from{SIZE_MAX};

void* Allocate(std::size_t bytes) {
  return bytes < refused_from.load() ? std::malloc(bytes) : nullptr;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

#endif  // TFEMBED_CORE_TESTING_REFUSED_MEMORY_H_
