#include "cc/kernels/file_set.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cc/kernels/checkpoint_index.h"
#include "cc/kernels/disk_file.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/file_statistics.h"

namespace tfembed {
namespace {

constexpr absl::string_view kFormat = "tfembed.row_files";
constexpr absl::string_view kHead = "tfembed.row_files 1";
constexpr absl::string_view kManifestPrefix = ".tfembed.";
constexpr absl::string_view kPendingPrefix = ".tfembed_new.";
constexpr absl::string_view kEnd = "end ";

uint32_t ChecksumOf(absl::string_view text) {
  return tensorflow::crc32c::Value(text.data(), text.size());
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the manifest is damaged or cut off: ", what));
}

// The next field of a line, words separated by one space.
absl::string_view TakeWord(absl::string_view* line) {
  const size_t end = line->find(' ');
  const absl::string_view word = line->substr(0, end);
  line->remove_prefix(end == line->npos ? line->size() : end + 1);
  return word;
}

bool TakeDtype(absl::string_view text, tensorflow::DataType* dtype) {
  return tensorflow::DataTypeFromString(std::string(text), dtype);
}

absl::Status ParseLine(absl::string_view line, Manifest* manifest) {
  const absl::string_view whole = line;
  const absl::string_view field = TakeWord(&line);
  bool fits;
  if (field == "save") {
    fits = absl::SimpleHexAtoi(line, &manifest->save_id);
  } else if (field == "table") {
    fits = absl::CUnescape(line, &manifest->table);
  } else if (field == "keys") {
    fits = TakeDtype(line, &manifest->format.key_dtype);
  } else if (field == "values") {
    fits = TakeDtype(line, &manifest->format.value_dtype);
  } else if (field == "dim") {
    fits = absl::SimpleAtoi(line, &manifest->format.dim);
  } else if (field == "file") {
    FileEntry entry;
    fits = absl::SimpleAtoi(TakeWord(&line), &entry.bytes) &&
           absl::SimpleHexAtoi(TakeWord(&line), &entry.checksum) &&
           !line.empty() && line.find('/') == line.npos;
    manifest->files[std::string(line)] = entry;
  } else {
    fits = false;
  }
  return fits ? absl::OkStatus()
              : Damaged(absl::StrCat("unknown line '", Printable(whole), "'"));
}

// Checks the last line, the checksum of all before it, and removes it.
absl::Status TakeEnd(absl::string_view* text) {
  const size_t end = text->rfind(absl::StrCat("\n", kEnd));
  if (end == text->npos) return Damaged("it has no end");
  const absl::string_view body = text->substr(0, end + 1);
  const absl::string_view number =
      absl::StripAsciiWhitespace(text->substr(end + 1 + kEnd.size()));
  uint32_t checksum;
  if (!absl::SimpleHexAtoi(number, &checksum) || checksum != ChecksumOf(body)) {
    return Damaged("its checksum is another");
  }
  *text = body;
  return absl::OkStatus();
}

}  // namespace

std::string RowFormat::DebugString() const {
  return absl::StrCat(tensorflow::DataTypeString(key_dtype), " keys, ",
                      tensorflow::DataTypeString(value_dtype),
                      " rows of width ", dim);
}

std::string Manifest::ToText() const {
  std::string text =
      absl::StrCat(kHead, "\nsave ", absl::Hex(save_id, absl::kZeroPad16),
                   "\ntable ", absl::CEscape(table), "\nkeys ",
                   tensorflow::DataTypeString(format.key_dtype), "\nvalues ",
                   tensorflow::DataTypeString(format.value_dtype), "\ndim ",
                   format.dim, "\n");
  for (const auto& [name, entry] : files) {
    absl::StrAppend(&text, "file ", entry.bytes, " ",
                    absl::Hex(entry.checksum, absl::kZeroPad8), " ", name,
                    "\n");
  }
  absl::StrAppend(&text, kEnd, absl::Hex(ChecksumOf(text), absl::kZeroPad8),
                  "\n");
  return text;
}

absl::StatusOr<Manifest> Manifest::Parse(absl::string_view text) {
  const absl::string_view head = text.substr(0, text.find('\n'));
  if (head != kHead && absl::StartsWith(head, kFormat)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest is '", Printable(head),
                     "'; this release reads '", kHead, "'"));
  }
  if (head != kHead) return Damaged("it does not begin with its format");
  TF_RETURN_IF_ERROR(TakeEnd(&text));
  if (!absl::StrContains(text, "\ntable ")) {
    return Damaged("it does not say whose rows the files hold");
  }
  text.remove_prefix(kHead.size() + 1);
  Manifest manifest;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    TF_RETURN_IF_ERROR(ParseLine(line, &manifest));
  }
  return manifest;
}

std::string SetOf(absl::string_view stem) {
  constexpr absl::string_view kShard = "_mht_";
  const size_t shard = stem.rfind(kShard);
  if (shard == stem.npos) return std::string(stem);
  const absl::string_view head = stem.substr(0, shard + kShard.size());
  absl::string_view tail = stem.substr(head.size());
  const size_t digits = tail.find_first_not_of("0123456789");
  if (digits == 0 || digits == tail.npos) return std::string(stem);
  tail.remove_prefix(digits);
  if (!absl::StartsWith(tail, "of")) return std::string(stem);
  return absl::StrCat(head, tail);
}

std::string KeysFile(absl::string_view stem) {
  return absl::StrCat(stem, "-keys");
}

std::string ValuesFile(absl::string_view stem) {
  return absl::StrCat(stem, "-values");
}

std::string FileFolder::PathOf(absl::string_view file) const {
  return tensorflow::io::JoinPath(path_, file);
}

std::string FileFolder::PendingPath(uint64_t save_id,
                                    absl::string_view file) const {
  return PathOf(absl::StrCat(kPendingPrefix,
                             absl::Hex(save_id, absl::kZeroPad16), ".", file));
}

std::string FileFolder::ManifestPath(absl::string_view set) const {
  return PathOf(absl::StrCat(kManifestPrefix, set));
}

absl::StatusOr<bool> FileFolder::Exists(const std::string& path) const {
  tensorflow::FileStatistics found;
  const absl::Status status = env_->Stat(path, &found);
  if (status.ok()) return true;
  if (absl::IsNotFound(status)) return false;
  return status;
}

absl::StatusOr<std::optional<Manifest>> FileFolder::ReadManifest(
    absl::string_view set) const {
  const std::string path = ManifestPath(set);
  const absl::StatusOr<bool> exists = Exists(path);
  if (!exists.ok()) return exists.status();
  if (!*exists) return std::optional<Manifest>();
  const absl::StatusOr<std::string> text =
      ReadRegularFile(env_, path, Manifest::kMostBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = Manifest::Parse(*text);
  if (!manifest.ok()) {
    return absl::Status(
        manifest.status().code(),
        absl::StrCat("'", path, "': ", manifest.status().message(), "."));
  }
  return std::optional<Manifest>(*std::move(manifest));
}

absl::Status FileFolder::WriteManifest(absl::string_view set,
                                       const Manifest& manifest) const {
  const std::string path = PendingPath(manifest.save_id, set);
  std::unique_ptr<tensorflow::WritableFile> file;
  TF_RETURN_IF_ERROR(env_->NewWritableFile(path, &file));
  absl::Status status = file->Append(manifest.ToText());
  status.Update(file->Close());
  TF_RETURN_IF_ERROR(status);
  return SyncToDisk(path);
}

absl::Status FileFolder::SyncNames() const { return SyncToDisk(path_); }

absl::Status FileFolder::Commit(absl::string_view set,
                                const Manifest& manifest) const {
  return env_->RenameFile(PendingPath(manifest.save_id, set),
                          ManifestPath(set));
}

absl::Status FileFolder::Restore(
    absl::string_view set, const std::optional<Manifest>& manifest) const {
  if (!manifest.has_value()) return env_->DeleteFile(ManifestPath(set));
  TF_RETURN_IF_ERROR(WriteManifest(set, *manifest));
  return Commit(set, *manifest);
}

absl::Status FileFolder::Publish(const Manifest& manifest) const {
  for (const auto& [name, entry] : manifest.files) {
    const std::string pending = PendingPath(manifest.save_id, name);
    const absl::StatusOr<bool> exists = Exists(pending);
    if (!exists.ok()) return exists.status();
    if (!*exists) continue;
    const absl::StatusOr<std::string> file = ReplaceableFile(PathOf(name));
    if (!file.ok()) return file.status();
    TF_RETURN_IF_ERROR(env_->RenameFile(pending, *file));
  }
  return SyncNames();
}

absl::StatusOr<std::string> FileFolder::Locate(const Manifest& manifest,
                                               absl::string_view file) const {
  const std::string pending = PendingPath(manifest.save_id, file);
  const absl::StatusOr<bool> exists = Exists(pending);
  if (!exists.ok()) return exists.status();
  return *exists ? pending : PathOf(file);
}

void FileFolder::RemoveLeftovers(const std::set<std::string>& files) const {
  constexpr size_t kIdLength = 17;  // With the dot behind it.
  std::vector<std::string> children;
  env_->GetChildren(path_, &children).IgnoreError();
  for (const std::string& child : children) {
    absl::string_view rest = child;
    if (!absl::ConsumePrefix(&rest, kPendingPrefix)) continue;
    if (rest.size() <= kIdLength) continue;
    if (files.count(std::string(rest.substr(kIdLength))) == 0) continue;
    env_->DeleteFile(PathOf(child)).IgnoreError();
  }
}

}  // namespace tfembed
