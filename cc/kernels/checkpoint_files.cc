#include "cc/kernels/checkpoint_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/lib/io/iterator.h"
#include "tensorflow/core/lib/io/table.h"
#include "tensorflow/core/lib/io/table_options.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace tfembed {
namespace {

absl::Status Explain(const std::string& index, const absl::Status& status) {
  if (status.ok() || !IsDamage(status)) return status;
  return absl::DataLossError(absl::StrCat(
      "'", index, "' is damaged or cut off: ", status.message(), "."));
}

}  // namespace

absl::Status VisitIndex(
    tensorflow::Env* env, const std::string& prefix,
    const std::function<absl::Status(absl::string_view name,
                                     absl::string_view text)>& visit) {
  const std::string index = tensorflow::MetaFilename(prefix);
  tensorflow::uint64 size;
  TF_RETURN_IF_ERROR(env->GetFileSize(index, &size));
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(env->NewRandomAccessFile(index, &file));
  tensorflow::table::Table* opened = nullptr;
  const absl::Status status = tensorflow::table::Table::Open(
      tensorflow::table::Options(), file.get(), size, &opened);
  if (!status.ok()) return Explain(index, status);
  const std::unique_ptr<tensorflow::table::Table> table(opened);
  const std::unique_ptr<tensorflow::table::Iterator> entry(
      table->NewIterator());
  for (entry->SeekToFirst(); entry->Valid(); entry->Next()) {
    TF_RETURN_IF_ERROR(visit(entry->key(), entry->value()));
  }
  return Explain(index, entry->status());
}

absl::StatusOr<std::set<std::string>> ReadNames(tensorflow::Env* env,
                                                const std::string& prefix) {
  std::set<std::string> names;
  const absl::Status status =
      VisitIndex(env, prefix, [&](absl::string_view name, absl::string_view) {
        names.emplace(name);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return names;
}

bool IsDamage(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return false;
    default:
      return true;
  }
}

CheckpointFiles::CheckpointFiles(tensorflow::Env* env,
                                 const std::string& prefix)
    : env_(env), prefix_(prefix) {
  free_.push_back(Open());
  status_ = free_.back()->status();
  if (!status_.ok()) return;
  auto names = ReadNames(env, prefix);
  status_ = names.status();
  if (status_.ok()) names_ = *std::move(names);
}

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
