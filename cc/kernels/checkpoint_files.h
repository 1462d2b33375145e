#ifndef TFEMBED_KERNELS_CHECKPOINT_FILES_H_
#define TFEMBED_KERNELS_CHECKPOINT_FILES_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {

// The files of one checkpoint, open as long as it lives. Thread-safe.
class CheckpointFiles {
 public:
  CheckpointFiles(tensorflow::Env* env, const std::string& prefix)
      : env_(env), prefix_(prefix) {
    free_.push_back(Open());
    status_ = free_.back()->status();
  }

  const std::string& prefix() const { return prefix_; }
  absl::Status status() const { return status_; }

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
  std::mutex mutex_;
  std::vector<std::unique_ptr<tensorflow::BundleReader>> free_;  // By mutex_.
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_FILES_H_
