#include "cc/core/support/page_collapser.h"

#include <sys/mman.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>

#include "cc/core/support/memory_block.h"

namespace tfembed {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // In Linux 6.1; older headers lack the name.
#endif

// Whether the system's transparent huge pages are on, for all or on request.
// MADV_COLLAPSE does not ask whether an administrator turned them off.
bool HugePagesAreAllowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

constexpr size_t kLeastBytes = size_t{4} << 20;

char* RoundUp(const void* data, size_t bytes) {
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + bytes - 1;
  return reinterpret_cast<char*>(end - end % bytes);
}

}  // namespace

PageCollapser& PageCollapser::Global() {
  static PageCollapser* const collapser = new PageCollapser;
  return *collapser;
}

PageCollapser::PageCollapser() : is_possible_(HugePagesAreAllowed()) {}

PageCollapser::~PageCollapser() {
  {
    const MutexLock lock(&mu_);
    is_over_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void PageCollapser::Note(const void* owner, const void* data, size_t bytes) {
  if (!is_possible_ || bytes < kLeastBytes) return;
  try {
    TryNote(owner, data, bytes);
  } catch (const std::exception&) {  // bad_alloc, or no more threads.
  }
}

void PageCollapser::TryNote(const void* owner, const void* data, size_t bytes) {
  // After a fork nobody may be there to unlock it; another step comes.
  const std::unique_lock<Mutex> lock(mu_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  mu_.AssertHeld();
  const void*& last = noted_[owner];
  if (last == data) return;
  char* const begin = RoundUp(data, kHugePageBytes);
  char* const end =
      RoundUp(static_cast<const char*>(data) + bytes + 1 - kHugePageBytes,
              kHugePageBytes);
  if (begin >= end) {
    last = data;
    return;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  waiting_.push_back({begin, end});
  last = data;
  changed_.NotifyAll();
}

void PageCollapser::Wait() {
  const MutexLock lock(&mu_);
  while (!waiting_.empty() || is_busy_) changed_.Wait(&mu_);
}

void PageCollapser::Run() {
  mu_.lock();
  while (true) {
    while (!is_over_ && waiting_.empty()) changed_.Wait(&mu_);
    if (is_over_) break;
    Stretch& first = waiting_.front();
    if (first.begin >= first.end) {
      waiting_.pop_front();
      changed_.NotifyAll();
      continue;
    }
    char* const page = first.begin;
    first.begin += kHugePageBytes;
    is_busy_ = true;
    mu_.unlock();
    (void)madvise(page, kHugePageBytes, kCollapse);
    mu_.lock();
    is_busy_ = false;
  }
  mu_.unlock();
}

}  // namespace tfembed
