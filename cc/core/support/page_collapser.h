#ifndef TFEMBED_CORE_SUPPORT_PAGE_COLLAPSER_H_
#define TFEMBED_CORE_SUPPORT_PAGE_COLLAPSER_H_

#include <cstddef>
#include <deque>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// Moves memory that is in use already to huge pages, on a thread of its own:
// for buffers that somebody else allocated and filled, of which rows are read
// and written at random. Contents and addresses stay; who reads or writes
// meanwhile may wait for a page. Linux 6.1 and later can do it; elsewhere, and
// where the system's transparent huge pages are off, nothing happens.
class PageCollapser {
 public:
  // Returns this process' collapser, which is never destroyed: its thread may
  // be at work when the process ends.
  static PageCollapser& Global();

  PageCollapser();
  // Finishes the stretch of memory that it is at, and leaves the others.
  ~PageCollapser();
  PageCollapser(const PageCollapser&) = delete;
  PageCollapser& operator=(const PageCollapser&) = delete;

  // Says that `owner` has its rows in these bytes. Cheap where it had them
  // there before, and for less memory than huge pages are worth. Where there is
  // no memory for a note, small pages serve as well. The memory may
  // go at any time: what is at its addresses then is moved in its place.
  void Note(const void* owner, const void* data, size_t bytes);

  // Waits until all that was noted is done.
  void Wait();

 private:
  struct Stretch {
    char* begin;
    char* end;
  };

  // May throw; then nothing is noted.
  void TryNote(const void* owner, const void* data, size_t bytes);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const bool is_possible_;
  Mutex mu_;
  Condition changed_;
  // Data, by owner.
  std::unordered_map<const void*, const void*> noted_ ABSL_GUARDED_BY(mu_);
  std::deque<Stretch> waiting_ ABSL_GUARDED_BY(mu_);
  bool is_busy_ ABSL_GUARDED_BY(mu_) = false;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Started under mu_, by the first stretch.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_PAGE_COLLAPSER_H_
