#include "cc/kernels/checkpoint_files.h"

#include <utility>

namespace tfembed {

CheckpointFiles::Reader CheckpointFiles::reader() {
  std::unique_ptr<tensorflow::BundleReader> reader;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      reader = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (reader == nullptr) reader = Open();
  return Reader(reader.release(), [this](tensorflow::BundleReader* used) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.emplace_back(used);
  });
}

}  // namespace tfembed
