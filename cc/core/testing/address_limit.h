#ifndef TFEMBED_CORE_TESTING_ADDRESS_LIMIT_H_
#define TFEMBED_CORE_TESTING_ADDRESS_LIMIT_H_

#include <sys/resource.h>

#include <cstdint>
#include <cstdio>

#include "gtest/gtest.h"

// AddressSanitizer and ThreadSanitizer need addresses without end.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TFEMBED_CAN_LIMIT_ADDRESSES 1
#else
#define TFEMBED_CAN_LIMIT_ADDRESSES 0
#endif

namespace tfembed {

// Lets the process map only `bytes` more while it lives.
class AddressLimit {
 public:
  explicit AddressLimit(int64_t bytes) {
    long pages = 0;
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    EXPECT_EQ(std::fscanf(file, "%ld", &pages), 1);
    std::fclose(file);
    getrlimit(RLIMIT_AS, &old_);
    rlimit limit = old_;
    limit.rlim_cur = pages * 4096 + bytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &old_); }

 private:
  rlimit old_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_ADDRESS_LIMIT_H_
