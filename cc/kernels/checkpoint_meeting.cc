#include "cc/kernels/checkpoint_meeting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

constexpr int64_t kMostMicros = 60 * 1000 * 1000;
constexpr int64_t kFirstPauseMicros = 200;
constexpr int64_t kMostPauseMicros = 50 * 1000;
constexpr absl::string_view kFailed = "failed ";

std::string BeginOf(const std::string& prefix) {
  return absl::StrCat(prefix, ".meeting-");
}

}  // namespace

CheckpointMeeting::CheckpointMeeting(
    tensorflow::Env* env, const std::string& prefix, const std::string& token,
    std::vector<std::string> owners, int64_t owner,
    tensorflow::CancellationManager* cancellation)
    : env_(env),
      begin_(BeginOf(prefix)),
      marker_(MarkerFile(prefix, token)),
      owners_(std::move(owners)),
      owner_(owner),
      cancellation_(cancellation) {}

std::string CheckpointMeeting::MarkerFile(const std::string& prefix,
                                          const std::string& token) {
  return absl::StrCat(BeginOf(prefix), token);
}

absl::Status CheckpointMeeting::Enter() {
  if (!env_->FileExists(marker_).ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        owners_[owner_], " does not see the file '", marker_,
        "', which the process that saves has written. Processes that save "
        "tables together need a shared file system; give a path on one. "
        "Nothing was saved."));
  }
  if (owner_ == 0) {
    std::vector<std::string> old;
    env_->GetMatchingPaths(absl::StrCat(begin_, "*"), &old).IgnoreError();
    for (const std::string& path : old) {
      if (!absl::StartsWith(path, marker_))
        env_->DeleteFile(path).IgnoreError();
    }
  }
  if (owners_.size() == 1) env_->DeleteFile(marker_).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointMeeting::Part>>
CheckpointMeeting::Exchange(const Part& own) {
  Tell(absl::StrCat(own.rows, " ", own.waiting, " ", own.shards));
  std::vector<Part> parts;
  for (int64_t i = 0; i < static_cast<int64_t>(owners_.size()); ++i) {
    absl::StatusOr<Part> part = i == owner_ ? own : Hear(i);
    if (!part.ok()) return part.status();
    parts.push_back(*part);
  }
  // All have seen it.
  if (round_ == 0 && owner_ == 0) env_->DeleteFile(marker_).IgnoreError();
  ++round_;
  return parts;
}

void CheckpointMeeting::Fail(const absl::Status& status) {
  Tell(absl::StrCat(kFailed, status.message()));
}

std::string CheckpointMeeting::FileOf(int64_t from, int64_t to) const {
  return absl::StrCat(marker_, ".", round_, ".", from, "-", to);
}

// One file for each of the others, who removes it. One that cannot be written
// is missed there.
void CheckpointMeeting::Tell(const std::string& content) {
  for (int64_t to = 0; to < static_cast<int64_t>(owners_.size()); ++to) {
    if (to == owner_) continue;
    const std::string path = FileOf(owner_, to);
    const std::string unfinished = absl::StrCat(path, ".unfinished");
    if (tensorflow::WriteStringToFile(env_, unfinished, content).ok()) {
      env_->RenameFile(unfinished, path).IgnoreError();
    }
  }
}

absl::StatusOr<CheckpointMeeting::Part> CheckpointMeeting::Hear(int64_t from) {
  const std::string path = FileOf(from, owner_);
  const std::string look = absl::StrCat(marker_, ".look-", owner_);
  const int64_t end = env_->NowMicros() + kMostMicros;
  for (int64_t pause = kFirstPauseMicros; !env_->FileExists(path).ok();
       pause = std::min(2 * pause, kMostPauseMicros)) {
    if (cancellation_ != nullptr && cancellation_->IsCancelled()) {
      return absl::CancelledError("the save was cancelled");
    }
    if (static_cast<int64_t>(env_->NowMicros()) > end) {
      return absl::UnavailableError(
          absl::StrCat(owners_[owner_], " has waited a minute for ",
                       owners_[from], ", which saves a part of the table"));
    }
    env_->SleepForMicroseconds(pause);
    if (pause < kMostPauseMicros) continue;
    // A network's file system lists a folder anew once one changes it.
    tensorflow::WriteStringToFile(env_, look, "").IgnoreError();
    env_->DeleteFile(look).IgnoreError();
  }
  std::string content;
  TF_RETURN_IF_ERROR(tensorflow::ReadFileToString(env_, path, &content));
  env_->DeleteFile(path).IgnoreError();
  if (absl::StartsWith(content, kFailed)) {
    return absl::UnavailableError(absl::StrCat(
        owners_[from], " failed: ", content.substr(kFailed.size())));
  }
  const std::vector<std::string> numbers = absl::StrSplit(content, ' ');
  Part part;
  if (numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &part.rows) ||
      !absl::SimpleAtoi(numbers[1], &part.waiting) ||
      !absl::SimpleAtoi(numbers[2], &part.shards)) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has no three numbers: '", content, "'"));
  }
  return part;
}

}  // namespace tfembed
