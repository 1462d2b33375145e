#include "cc/core/support/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// For what is not counted here: page tables, the program's other memory.
constexpr int64_t kReserve = int64_t{64} << 20;

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  if (file >> number) return number;  // Not where it says "max".
  return std::nullopt;
}

// The number behind the word `name` in a file of a word and a number a line.
std::optional<int64_t> ReadField(const std::string& path,
                                 const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    int64_t number;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

// The folder of this process' control group below a mount, by its line in
// /proc/self/cgroup, "" where there is none: "0::/a" is group /a of version 2,
// "5:cpu,memory:/a" of version 1's controller.
std::string GroupFolder(const std::string& root,
                        const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != controllers.npos) {
      return line.substr(second + 1);
    }
  }
  return "";
}

// What a group's limit leaves: files that are cached there can be dropped.
int64_t LeftInGroup(const std::string& folder, const char* limit_file,
                    const char* usage_file, const char* cached_field) {
  const auto limit = ReadNumber(folder + "/" + limit_file);
  const auto usage = ReadNumber(folder + "/" + usage_file);
  if (!limit.has_value() || !usage.has_value()) return kUnlimited;
  const int64_t cached =
      ReadField(folder + "/memory.stat", cached_field).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cached));
}

int64_t LeftInGroups(const std::string& root) {
  int64_t left = kUnlimited;
  // A container sees its own group as the mount, or as a folder below it.
  for (const std::string& folder : {std::string(), GroupFolder(root, "")}) {
    left = std::min(left, LeftInGroup(root + "/sys/fs/cgroup" + folder,
                                      "memory.max", "memory.current", "file"));
  }
  for (const std::string& folder :
       {std::string(), GroupFolder(root, "memory")}) {
    left = std::min(left, LeftInGroup(root + "/sys/fs/cgroup/memory" + folder,
                                      "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_cache"));
  }
  return left;
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  int64_t left = LeftInGroups(root);
  const auto kilobytes = ReadField(root + "/proc/meminfo", "MemAvailable:");
  if (kilobytes.has_value()) left = std::min(left, *kilobytes * 1024);
  return left;
}

absl::Status CheckMemory(int64_t bytes) {
  const int64_t available = AvailableMemory();
  if (available == kUnlimited || bytes <= available - kReserve) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "A table needs ", bytes, " bytes more of memory, of which ", available,
      " are available. Raise the limit (the machine's or the container's "
      "memory), or make the table smaller."));
}

absl::Status NoMemory(uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("The system refused ", bytes,
                   " bytes of memory for a table. Raise the limit (ulimit -v, "
                   "the container's memory), or make the table smaller."));
}

}  // namespace tfembed
