#include "cc/kernels/row_file_reader.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/disk_file.h"
#include "cc/kernels/mapped_tensor.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/table_writer.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/inputbuffer.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DT_STRING;
using ::tensorflow::Env;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

constexpr int64_t kBlockBytes = 256 << 10;
constexpr int64_t kLengthBytes = sizeof(uint32_t);

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("'", path, "' ", what));
}

// Each value has at least so many.
int64_t BytesOf(DataType dtype) {
  return dtype == DT_STRING ? kLengthBytes : tensorflow::DataTypeSize(dtype);
}

// One file from an offset on.
class Input {
 public:
  absl::Status Open(Env* env, const std::string& path, int64_t offset = 0) {
    path_ = path;
    TF_RETURN_IF_ERROR(env->NewRandomAccessFile(path, &file_));
    buffer_ =
        std::make_unique<tensorflow::io::InputBuffer>(file_.get(), kBlockBytes);
    return buffer_->Seek(offset);
  }

  absl::Status Read(int64_t n, void* bytes) {
    size_t read = 0;
    const absl::Status status =
        buffer_->ReadNBytes(n, static_cast<char*>(bytes), &read);
    if (status.ok() || !absl::IsOutOfRange(status)) return status;
    return Damaged(path_, "ends inside of a row.");
  }

  absl::Status ReadString(int64_t bytes_left, tstring* text) {
    uint32_t length = 0;
    TF_RETURN_IF_ERROR(ReadLength(bytes_left, &length));
    text->resize_uninitialized(length);
    return Read(length, text->mdata());
  }

  // Moves `at`, where a string of a file of so many bytes begins, behind it.
  absl::Status SkipString(int64_t bytes, int64_t* at) {
    uint32_t length = 0;
    TF_RETURN_IF_ERROR(ReadLength(bytes - *at, &length));
    *at += kLengthBytes + length;
    return buffer_->Seek(*at);
  }

 private:
  absl::Status ReadLength(int64_t bytes_left, uint32_t* length) {
    TF_RETURN_IF_ERROR(Read(kLengthBytes, length));
    if (*length <= bytes_left - kLengthBytes) return absl::OkStatus();
    return Damaged(path_, absl::StrCat("has a string of ", *length,
                                       " bytes where ", bytes_left,
                                       " are left; it holds no strings, or "
                                       "was cut off."));
  }

  std::string path_;
  std::unique_ptr<tensorflow::RandomAccessFile> file_;
  std::unique_ptr<tensorflow::io::InputBuffer> buffer_;
};

absl::StatusOr<int64_t> SizeOf(Env* env, const std::string& path) {
  const absl::StatusOr<int64_t> bytes = RegularFileSize(env, path);
  if (!absl::IsNotFound(bytes.status())) return bytes;
  return absl::NotFoundError(
      absl::StrCat("There is no file '", path,
                   "'. Rows lie in pairs of "
                   "files, '...-keys' and '...-values'."));
}

// A byte that is neither 0 nor 1 is no bool.
absl::Status CheckBools(Env* env, const std::string& path, int64_t bytes,
                        DataType dtype) {
  if (dtype != tensorflow::DT_BOOL) return absl::OkStatus();
  Input input;
  TF_RETURN_IF_ERROR(input.Open(env, path));
  std::vector<uint8_t> block(std::min(bytes, kBlockBytes));
  for (int64_t at = 0; at < bytes; at += kBlockBytes) {
    const int64_t n = std::min(kBlockBytes, bytes - at);
    TF_RETURN_IF_ERROR(input.Read(n, block.data()));
    const auto found = std::find_if(block.begin(), block.begin() + n,
                                    [](uint8_t byte) { return byte > 1; });
    if (found == block.begin() + n) continue;
    return Damaged(path, absl::StrCat("has a bool that is ", *found,
                                      " in place of 0 or 1."));
  }
  return absl::OkStatus();
}

// The values, `dtype` ones, that a file holds. Strings are counted one by one,
// until there are more than `most`.
absl::StatusOr<int64_t> CountValues(Env* env, const std::string& path,
                                    int64_t bytes, DataType dtype,
                                    int64_t most) {
  if (dtype != DT_STRING) {
    const int64_t size = tensorflow::DataTypeSize(dtype);
    if (bytes % size == 0) return bytes / size;
    return Damaged(
        path, absl::StrCat("has ", bytes,
                           " bytes, which do not divide by "
                           "the ",
                           size, " of each ", tensorflow::DataTypeString(dtype),
                           "; it was cut off, or has another dtype."));
  }
  Input input;
  TF_RETURN_IF_ERROR(input.Open(env, path));
  int64_t count = 0;
  for (int64_t at = 0; at < bytes && count <= most; ++count) {
    TF_RETURN_IF_ERROR(input.SkipString(bytes, &at));
  }
  return count;
}

// Each file is read no further than the other one can be right.
absl::Status CheckCounts(Env* env, const RowFilePair& pair,
                         const RowFormat& format) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  const int64_t each = BytesOf(format.value_dtype);
  const int64_t most =
      format.dim == 0 ? kAll : pair.values_bytes / each / format.dim;
  const auto keys =
      CountValues(env, pair.keys_path, pair.keys_bytes, format.key_dtype, most);
  if (!keys.ok()) return keys.status();
  const auto values =
      CountValues(env, pair.values_path, pair.values_bytes, format.value_dtype,
                  *keys > most ? 0 : *keys * format.dim);
  if (!values.ok()) return values.status();
  const bool fits = format.dim == 0 ? *values == 0
                                    : *values % format.dim == 0 &&
                                          *values / format.dim == *keys;
  if (fits) {
    return CheckBools(env, pair.values_path, pair.values_bytes,
                      format.value_dtype);
  }
  return Damaged(
      pair.values_path,
      absl::StrCat(
          "has ", *values, " values; the ", *keys, " keys of '", pair.keys_path,
          "' with ", format.DebugString(), " need ", format.dim,
          " each. One of them was cut off, or they are of another width "
          "or dtype."));
}

absl::Status CheckFile(const FileFolder& folder, const std::string& set,
                       const std::string& path, int64_t bytes,
                       const FileEntry& entry) {
  uint32_t checksum = 0;
  if (bytes == entry.bytes) {
    Input input;
    TF_RETURN_IF_ERROR(input.Open(folder.env(), path));
    std::vector<char> block(std::min(bytes, kBlockBytes));
    ProgressLog progress(absl::StrCat("Checking '", path, "'"), bytes, "bytes");
    for (int64_t at = 0; at < bytes; at += kBlockBytes) {
      const int64_t n = std::min(kBlockBytes, bytes - at);
      TF_RETURN_IF_ERROR(input.Read(n, block.data()));
      progress.Add(n);
      checksum = tensorflow::crc32c::Extend(checksum, block.data(), n);
    }
    if (checksum == entry.checksum) return absl::OkStatus();
  }
  return Damaged(
      path, absl::StrCat("is not what was saved: ", bytes,
                         " bytes with checksum ", checksum, " in place of ",
                         entry.bytes, " with ", entry.checksum,
                         ". If another program has written it since, remove '",
                         folder.ManifestPath(set), "'."));
}

int64_t RowBytes(const RowFormat& format) {
  // A string counts with its length's bytes and a guess of its own.
  const auto size = [](DataType dtype) -> int64_t {
    return dtype == DT_STRING ? 64 : tensorflow::DataTypeSize(dtype);
  };
  return size(format.key_dtype) + format.dim * size(format.value_dtype);
}

// Fills a tensor from `offset` on.
absl::Status ReadTensor(Env* env, const std::string& path, int64_t bytes,
                        int64_t* offset, Tensor* tensor) {
  Input input;
  TF_RETURN_IF_ERROR(input.Open(env, path, *offset));
  if (tensor->dtype() != DT_STRING) {
    const absl::string_view memory = tensor->tensor_data();
    *offset += memory.size();
    return input.Read(memory.size(), const_cast<char*>(memory.data()));
  }
  auto texts = tensor->flat<tstring>();
  for (int64_t i = 0; i < texts.size(); ++i) {
    TF_RETURN_IF_ERROR(input.ReadString(bytes - *offset, &texts(i)));
    *offset += kLengthBytes + static_cast<int64_t>(texts(i).size());
  }
  return absl::OkStatus();
}

// How many of the next rows to read: strings tell only one by one.
absl::StatusOr<int64_t> NextRows(Env* env, const RowFilePair& pair,
                                 const RowFormat& format, int64_t max_rows,
                                 int64_t offset) {
  if (format.key_dtype != DT_STRING) {
    const int64_t size = tensorflow::DataTypeSize(format.key_dtype);
    return std::min(max_rows, (pair.keys_bytes - offset) / size);
  }
  Input input;
  TF_RETURN_IF_ERROR(input.Open(env, pair.keys_path, offset));
  int64_t n = 0;
  for (int64_t at = offset; n < max_rows && at < pair.keys_bytes; ++n) {
    TF_RETURN_IF_ERROR(input.SkipString(pair.keys_bytes, &at));
  }
  return n;
}

// Memory is held against the bytes that are left: the files may have changed
// since they were checked.
absl::Status CheckLeft(const RowFilePair& pair, const RowFormat& format,
                       int64_t rows, const RowFileOffsets& offsets) {
  const int64_t each = BytesOf(format.value_dtype);
  const int64_t left = pair.values_bytes - offsets.values;
  if (format.dim == 0 || rows <= left / each / format.dim) {
    return absl::OkStatus();
  }
  return Damaged(
      pair.values_path,
      absl::StrCat("has ", left, " bytes behind byte ", offsets.values, "; ",
                   rows, " rows of width ", format.dim, " need more."));
}

}  // namespace

absl::StatusOr<RowFilePair> CheckRowFiles(const FileFolder& folder,
                                          const std::string& stem,
                                          const RowFormat& format) {
  const std::string set = SetOf(stem);
  const auto manifest = folder.ReadManifest(set);
  if (!manifest.ok()) return manifest.status();
  RowFilePair pair;
  const auto find = [&](const std::string& file, std::string* path,
                        int64_t* bytes) -> absl::Status {
    *path = folder.PathOf(file);
    const bool is_listed =
        manifest->has_value() && (*manifest)->files.count(file) > 0;
    if (is_listed) {
      auto located = folder.Locate(**manifest, file);
      if (!located.ok()) return located.status();
      *path = *std::move(located);
    }
    const auto size = SizeOf(folder.env(), *path);
    if (!size.ok()) return size.status();
    *bytes = *size;
    if (!is_listed) return absl::OkStatus();
    if ((*manifest)->format != format) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", *path, "' was saved with ", (*manifest)->format.DebugString(),
          "; it is to be loaded as ", format.DebugString(), "."));
    }
    return CheckFile(folder, set, *path, *bytes, (*manifest)->files.at(file));
  };
  TF_RETURN_IF_ERROR(find(KeysFile(stem), &pair.keys_path, &pair.keys_bytes));
  TF_RETURN_IF_ERROR(
      find(ValuesFile(stem), &pair.values_path, &pair.values_bytes));
  TF_RETURN_IF_ERROR(CheckCounts(folder.env(), pair, format));
  return pair;
}

absl::Status ReadRowFiles(Env* env, const RowFilePair& pair,
                          const RowFormat& format, int64_t max_rows,
                          RowFileOffsets* offsets, Tensor* keys,
                          Tensor* values) {
  max_rows =
      std::min(max_rows, std::max<int64_t>(1, kChunkBytes / RowBytes(format)));
  const auto n = NextRows(env, pair, format, max_rows, offsets->keys);
  if (!n.ok()) return n.status();
  TF_RETURN_IF_ERROR(CheckLeft(pair, format, *n, *offsets));
  auto key_memory = MapTensor(format.key_dtype, TensorShape({*n}));
  auto memory = MapTensor(format.value_dtype, TensorShape({*n, format.dim}));
  if (!key_memory.ok() || !memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "There is no memory for ", *n, " rows of '", pair.values_path, "'."));
  }
  *keys = *std::move(key_memory);
  *values = *std::move(memory);
  TF_RETURN_IF_ERROR(
      ReadTensor(env, pair.keys_path, pair.keys_bytes, &offsets->keys, keys));
  return ReadTensor(env, pair.values_path, pair.values_bytes, &offsets->values,
                    values);
}

}  // namespace tfembed
