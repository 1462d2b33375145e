#ifndef TFEMBED_CORE_SEALED_STRING_HASH_H_
#define TFEMBED_CORE_SEALED_STRING_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tfembed {

// SipHash-2-4 (Aumasson, Bernstein 2012) by a key of two words:
// `tf.strings.to_hash_bucket_strong` before its modulo.
uint64_t KeyedStringHash(absl::string_view text, uint64_t key, uint64_t key_2);

// FarmHash's Fingerprint64, which never changes:
// `tf.strings.to_hash_bucket_fast` before its modulo.
uint64_t Fingerprint64(absl::string_view text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SEALED_STRING_HASH_H_
