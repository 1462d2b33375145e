#ifndef TFEMBED_KERNELS_CHECKPOINT_FILES_H_
#define TFEMBED_KERNELS_CHECKPOINT_FILES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {

// Calls visit(name, text) for each entry of the index of checkpoint `prefix`,
// that of its header too. NotFound: there is no index. DataLoss: it is damaged.
absl::Status VisitIndex(
    tensorflow::Env* env, const std::string& prefix,
    const std::function<absl::Status(absl::string_view name,
                                     absl::string_view text)>& visit);

// The names of all tensors of checkpoint `prefix`, and of their slices. (A
// BundleReader takes what it fails to read of the index for what is not there.)
absl::StatusOr<std::set<std::string>> ReadNames(tensorflow::Env* env,
                                                const std::string& prefix);

// Whether what is in the files is wrong, by the error of reading them; else
// they cannot be read now.
bool IsDamage(const absl::Status& status);

// The files of one checkpoint, open as long as it lives. Thread-safe.
class CheckpointFiles {
 public:
  CheckpointFiles(tensorflow::Env* env, const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  absl::Status status() const { return status_; }

  bool Contains(const std::string& tensor) const {
    return names_.count(tensor) > 0;
  }

  // Whether so many more bytes of the files may be kept in memory: 64 MB in
  // all.
  bool MayKeep(int64_t bytes) {
    constexpr int64_t kMostBytes = 64 << 20;
    return kept_bytes_.fetch_add(bytes) + bytes <= kMostBytes;
  }

  // A reader that is used by nobody else until it goes; there are as many as
  // were ever in use at once. Its status() may be an error.
  using Reader =
      std::unique_ptr<tensorflow::BundleReader,
                      std::function<void(tensorflow::BundleReader* reader)>>;
  Reader reader();

 private:
  std::unique_ptr<tensorflow::BundleReader> Open() const {
    return std::make_unique<tensorflow::BundleReader>(env_, prefix_);
  }

  tensorflow::Env* const env_;
  const std::string prefix_;
  absl::Status status_;
  std::set<std::string> names_;
  std::atomic<int64_t> kept_bytes_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<tensorflow::BundleReader>> free_;  // By mutex_.
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_FILES_H_
