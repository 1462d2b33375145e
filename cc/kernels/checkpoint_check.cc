#include "cc/kernels/checkpoint_check.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/checkpoint_files.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/inputbuffer.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {
namespace {

using ::tensorflow::BundleEntryProto;
using ::tensorflow::BundleHeaderProto;
using ::tensorflow::Env;
using ::tensorflow::RandomAccessFile;
using ::tensorflow::io::InputBuffer;

constexpr int64_t kBlockBytes = 4 << 20;

absl::Status Damaged(absl::string_view file, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("'", file, "' is damaged or cut off: ", what, "."));
}

struct DataFile {
  std::unique_ptr<RandomAccessFile> bytes;
  std::unique_ptr<InputBuffer> input;  // Of `bytes`, which outlives it.
};

class Check {
 public:
  Check(Env* env, const std::string& prefix)
      : env_(env),
        prefix_(prefix),
        index_(tensorflow::MetaFilename(prefix)),
        block_(kBlockBytes) {}

  absl::Status Run() {
    TF_RETURN_IF_ERROR(ReadIndex());
    for (const auto& [tensor, entry] : entries_) {
      const absl::Status status = CheckEntry(tensor, entry);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  // The entries of the index, whose own blocks carry checksums.
  absl::Status ReadIndex() {
    TF_RETURN_IF_ERROR(
        VisitIndex(env_, prefix_,
                   [this](absl::string_view tensor, absl::string_view text) {
                     return AddEntry(tensor, text);
                   }));
    if (num_files_ == 0) return Damaged(index_, "it has no header");
    return absl::OkStatus();
  }

  absl::Status AddEntry(absl::string_view tensor, absl::string_view text) {
    bool parsed;
    if (tensor == tensorflow::kHeaderEntryKey) {
      BundleHeaderProto header;
      parsed = header.ParseFromArray(text.data(), text.size());
      num_files_ = header.num_shards();
    } else {
      parsed = entries_[std::string(tensor)].ParseFromArray(text.data(),
                                                            text.size());
    }
    if (parsed) return absl::OkStatus();
    return Damaged(index_,
                   absl::StrCat("its entry '", tensor, "' cannot be read"));
  }

  absl::Status CheckEntry(const std::string& tensor,
                          const BundleEntryProto& entry) {
    // Of a sliced tensor each slice has an entry of its own.
    if (entry.slices_size() > 0) return absl::OkStatus();
    const std::string path =
        tensorflow::DataFilename(prefix_, entry.shard_id(), num_files_);
    DataFile& file = files_[path];
    if (file.input == nullptr) TF_RETURN_IF_ERROR(Open(path, &file));
    // Their checksums are not those of their bytes.
    const bool has_parts = entry.dtype() == tensorflow::DT_STRING ||
                           entry.dtype() == tensorflow::DT_VARIANT;
    const absl::Status status =
        has_parts ? CheckParts(tensor) : CheckBytes(entry, file.input.get());
    if (status.ok()) return status;
    const std::string what =
        absl::StrCat("tensor '", tensor, "': ", status.message());
    if (IsDamage(status)) return Damaged(path, what);
    return absl::Status(status.code(),
                        absl::StrCat("'", path, "' cannot be read: ", what));
  }

  absl::Status Open(const std::string& path, DataFile* file) {
    TF_RETURN_IF_ERROR(env_->NewRandomAccessFile(path, &file->bytes));
    file->input = std::make_unique<InputBuffer>(file->bytes.get(), kBlockBytes);
    return absl::OkStatus();
  }

  absl::Status CheckBytes(const BundleEntryProto& entry, InputBuffer* input) {
    TF_RETURN_IF_ERROR(input->Seek(entry.offset()));
    tensorflow::uint32 checksum = 0;
    for (int64_t done = 0; done < entry.size();) {
      const int64_t n = std::min(kBlockBytes, entry.size() - done);
      size_t read;
      TF_RETURN_IF_ERROR(input->ReadNBytes(n, block_.data(), &read));
      checksum = tensorflow::crc32c::Extend(checksum, block_.data(), read);
      done += n;
    }
    const tensorflow::uint32 saved = tensorflow::crc32c::Unmask(entry.crc32c());
    if (checksum == saved) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("checksum ", checksum, " in place of ", saved));
  }

  absl::Status CheckParts(const std::string& tensor) {
    if (reader_ == nullptr) {
      reader_ = std::make_unique<tensorflow::BundleReader>(env_, prefix_);
      TF_RETURN_IF_ERROR(reader_->status());
    }
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(reader_->LookupDtypeAndShape(tensor, &dtype, &shape));
    tensorflow::Tensor value(dtype, shape);
    return reader_->Lookup(tensor, &value);
  }

  Env* const env_;
  const std::string prefix_;
  const std::string index_;
  std::vector<char> block_;
  int num_files_ = 0;
  std::map<std::string, BundleEntryProto> entries_;
  std::map<std::string, DataFile> files_;
  std::unique_ptr<tensorflow::BundleReader> reader_;
};

}  // namespace

absl::Status CheckCheckpoint(Env* env, const std::string& prefix) {
  return Check(env, prefix).Run();
}

}  // namespace tfembed
