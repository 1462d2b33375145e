#ifndef TFEMBED_KERNELS_DISK_SYNC_H_
#define TFEMBED_KERNELS_DISK_SYNC_H_

#include <string>

#include "absl/status/status.h"

namespace tfembed {

// Returns when a closed file's content, or a folder's names, are on the disk as
// they are now. (WritableFile::Sync of TensorFlow's local files only empties
// buffers of the process.) Of other file systems than the machine's it asks
// nothing: what they have closed they keep. Unknown: the disk's error.
absl::Status SyncToDisk(const std::string& path);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_DISK_SYNC_H_
