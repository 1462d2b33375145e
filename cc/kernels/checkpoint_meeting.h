#ifndef TFEMBED_KERNELS_CHECKPOINT_MEETING_H_
#define TFEMBED_KERNELS_CHECKPOINT_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// The owners of tables, processes that write one checkpoint together, tell each
// other here how many rows each of them writes. They have a folder in common
// and nothing else: a thread that waits for another owner's call would wait
// behind writers, which wait for the save.
//
// `Exchange` is called by all owners equally often, and by one thread of each.
class CheckpointMeeting {
 public:
  // `prefix` is that of the checkpoint, `token` this save's own. Whoever began
  // the save has made the file MarkerFile(prefix, token). `owners` are names of
  // all, for errors, of which this is number `owner`. `cancellation` may be
  // null.
  CheckpointMeeting(tensorflow::Env* env, const std::string& prefix,
                    const std::string& token, std::vector<std::string> owners,
                    int64_t owner,
                    tensorflow::CancellationManager* cancellation);

  static std::string MarkerFile(const std::string& prefix,
                                const std::string& token);

  // FailedPrecondition: the marker cannot be seen from here, so the owners have
  // no folder in common. Removes what killed saves of this prefix have left.
  absl::Status Enter();

  // A part of a table: of its owner, or of all together.
  struct Part {
    int64_t rows = 0;
    int64_t waiting = 0;  // Keys.
    int64_t shards = 0;
  };

  // Returns the parts of all owners, in their order, once all have come.
  // Unavailable: one has not within a minute, or has failed.
  absl::StatusOr<std::vector<Part>> Exchange(const Part& own);

  int64_t owner() const { return owner_; }

  // Tells the others that this owner comes to no further Exchange.
  void Fail(const absl::Status& status);

 private:
  std::string FileOf(int64_t from, int64_t to) const;
  void Tell(const std::string& content);
  absl::StatusOr<Part> Hear(int64_t from);

  tensorflow::Env* const env_;
  const std::string begin_;  // Of the names of all files of meetings.
  const std::string marker_;
  const std::vector<std::string> owners_;
  const int64_t owner_;
  tensorflow::CancellationManager* const cancellation_;
  int64_t round_ = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_MEETING_H_
