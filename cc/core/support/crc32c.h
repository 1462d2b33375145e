#ifndef TFEMBED_CORE_SUPPORT_CRC32C_H_
#define TFEMBED_CORE_SUPPORT_CRC32C_H_

#include <cstdint>

namespace tfembed {

// The CRC-32C of `size` bytes, some gigabytes a second on x86-64.
uint32_t Crc32c(const void* bytes, int64_t size);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_CRC32C_H_
