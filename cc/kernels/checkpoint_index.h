#ifndef TFEMBED_KERNELS_CHECKPOINT_INDEX_H_
#define TFEMBED_KERNELS_CHECKPOINT_INDEX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// Returns the beginning of a file's text for error messages; escapes bytes that
// Python could not show.
std::string Printable(absl::string_view text);

// Whether a text, such as a name, can be converted to a Python str.
bool IsUtf8(absl::string_view text);

// The index of a checkpoint, `<prefix>.index`: a header, and a text (a
// BundleEntryProto) for every name. TensorFlow's reader crashes on some indices
// with valid checksums, and allocates any amount that an index requires; this
// reader checks each number against the bytes of the file first. It takes about
// five times the memory of the file. Thread-safe after Read.
class CheckpointIndex {
 public:
  // NotFound: there is none. InvalidArgument: no file, or one that is too large
  // to be an index; a later format. DataLoss: damaged.
  absl::Status Read(tensorflow::Env* env, const std::string& prefix);

  // REQUIRES of the rest: Read succeeded.
  int32_t num_files() const { return num_files_; }
  bool is_of_other_byte_order() const { return is_of_other_byte_order_; }

  // Entries in the order of their names, the header left out.
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  absl::string_view name(int64_t i) const;
  absl::string_view text(int64_t i) const;

  // The number of the entry of this name.
  std::optional<int64_t> Find(absl::string_view name) const;

 private:
  // A part of file_.
  struct Handle {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  // Where the name lies in names_, and the text in file_.
  struct Entry {
    uint32_t name = 0;
    uint32_t name_bytes = 0;
    uint32_t text = 0;
    uint32_t text_bytes = 0;
  };

  absl::Status Parse();
  absl::Status AddBlock(absl::string_view block, absl::string_view last_name);
  absl::Status AddEntry(absl::string_view name, absl::string_view text);
  absl::Status ReadHeader(absl::string_view text);
  static bool TakeHandle(absl::string_view* text, Handle* handle);
  absl::Status BlockOf(const Handle& handle, absl::string_view* block) const;

  std::string file_;
  std::string names_;
  std::vector<Entry> entries_;
  bool has_header_ = false;
  int32_t num_files_ = 0;
  bool is_of_other_byte_order_ = false;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_INDEX_H_
