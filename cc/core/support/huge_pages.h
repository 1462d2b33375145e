#ifndef TFEMBED_CORE_SUPPORT_HUGE_PAGES_H_
#define TFEMBED_CORE_SUPPORT_HUGE_PAGES_H_

#include <cstddef>

namespace tfembed {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Whether the system's transparent huge pages are on, for all or on request.
bool HugePagesAreAllowed();

// Moves memory that is in use already to huge pages; contents and addresses
// stay, and who reads or writes meanwhile may wait. Linux 6.1 and later can do
// it; elsewhere, where huge pages are not allowed or there are none, pages stay
// as they are. REQUIRES: both are multiples of kHugePageBytes.
void MoveToHugePages(char* begin, size_t bytes);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_HUGE_PAGES_H_
