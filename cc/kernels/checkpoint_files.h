#ifndef TFEMBED_KERNELS_CHECKPOINT_FILES_H_
#define TFEMBED_KERNELS_CHECKPOINT_FILES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/kernels/checkpoint_index.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/io/inputbuffer.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"

namespace tfembed {

// A tensor in a checkpoint, checked: its parts cover each element once, and all
// of their bytes are in the files.
struct SavedTensor {
  struct Part {
    std::vector<int64_t> starts, lengths;  // One a dimension.
    int64_t entry = 0;                     // In the index.
  };

  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  int64_t bytes = 0;        // In the files.
  std::vector<Part> parts;  // One where it was saved as a whole.
  // Where all parts are of whole rows, sorted: 0, and the end of each.
  std::vector<int64_t> rows;
};

// Whether an error of reading means that the files are damaged; other errors
// mean that they cannot be read now.
bool IsDamage(const absl::Status& status);

// The files of one checkpoint, open as long as it lives, read without
// TensorFlow's reader (see checkpoint_index.h). Thread-safe.
class CheckpointFiles {
 public:
  CheckpointFiles(tensorflow::Env* env, const std::string& prefix)
      : env_(env), prefix_(prefix), status_(index_.Read(env, prefix)) {}

  const std::string& prefix() const { return prefix_; }
  const CheckpointIndex& index() const { return index_; }

  // The errors of CheckpointIndex::Read. REQUIRES of the rest: it is OK.
  absl::Status status() const { return status_; }

  bool Contains(absl::string_view tensor) const {
    return index_.Find(tensor).has_value();
  }

  // NotFound: no such tensor, or a file is missing. DataLoss: what the index
  // says cannot be, or is not in the files; nothing but the lengths of strings
  // has been read of them. Others, as below: a file cannot be read now.
  absl::StatusOr<SavedTensor> Find(absl::string_view tensor);

  // The same of an entry of the index.
  absl::StatusOr<SavedTensor> Check(int64_t entry);

  // Reads a part into a tensor of its dtype and shape. DataLoss: another
  // checksum. Unimplemented: of another byte order, or of objects of C++.
  absl::Status ReadPart(const SavedTensor& saved, int64_t part,
                        tensorflow::Tensor* tensor);

  // Reads all parts into a tensor of the whole's dtype and shape.
  absl::Status Read(const SavedTensor& saved, tensorflow::Tensor* tensor);

  // ResourceExhausted: strings are more than what the files have pays for: 64
  // MB, and four times the bytes of all that were opened. A string takes 24
  // bytes, and one in a file.
  absl::Status CheckMemoryOf(int64_t num_strings);

  // Compares the checksum of an entry's bytes, where it has some, block by
  // block. REQUIRES: Check succeeded.
  absl::Status CompareChecksum(int64_t entry);

  // The file that has the bytes of an entry. "" where the index is damaged.
  std::string PathOf(int64_t entry) const;

  // Whether so many more bytes of the files may be kept in memory: 10 MB in
  // all.
  bool MayKeep(int64_t bytes) {
    constexpr int64_t kMostBytes = 10 << 20;
    return kept_bytes_.fetch_add(bytes) + bytes <= kMostBytes;
  }

 private:
  struct DataFile {
    absl::Status status;
    std::string path;
    int64_t bytes = 0;
    int64_t claimed = 0;  // By all entries that were checked.
    std::unique_ptr<tensorflow::RandomAccessFile> file;
  };

  absl::Status Parse(int64_t i, tensorflow::BundleEntryProto* entry) const;
  DataFile* FileOf(int32_t number);
  // Checks an entry that has bytes.
  absl::Status CheckStored(int64_t i, const tensorflow::BundleEntryProto& entry,
                           SavedTensor* saved);
  absl::Status CheckPlace(int64_t i, const tensorflow::BundleEntryProto& entry);
  absl::Status CheckSlices(int64_t i, const tensorflow::BundleEntryProto& entry,
                           SavedTensor* saved);
  // Goes through an entry of strings, and reads them where `strings` is not
  // null. `with_bytes` false: only their lengths.
  absl::Status ReadStrings(const tensorflow::BundleEntryProto& entry, int64_t n,
                           bool with_bytes, tensorflow::tstring* strings);
  // Goes through an entry of objects of C++ (variants).
  absl::Status CompareObjects(const tensorflow::BundleEntryProto& entry,
                              int64_t n);
  absl::Status CompareBytes(const tensorflow::BundleEntryProto& entry);

  tensorflow::Env* const env_;
  const std::string prefix_;
  CheckpointIndex index_;
  const absl::Status status_;
  std::atomic<int64_t> kept_bytes_{0};
  std::mutex mutex_;
  std::map<int32_t, DataFile> files_;  // By number; opened by mutex_.
  std::vector<bool> is_claimed_;       // By entry, by mutex_.
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_FILES_H_
