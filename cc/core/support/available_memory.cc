#include "cc/core/support/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace tfembed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

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

// How a version of control groups names what is asked of it.
struct GroupFiles {
  const char* mount;
  const char* controller;
  const char* limit;
  const char* usage;
  const char* cached;  // Files in memory, and of them
  const char* shared;  // those that are memory alone: nothing to drop.
  const char* caches;  // The kernel's own; "": not counted as usage.
};

constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                                  "memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  "total_cache",
                                  "total_shmem",
                                  ""};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup",  "",     "memory.max",
                                  "memory.current",  "file", "shmem",
                                  "slab_reclaimable"};

// What a group's limit leaves, with what can be dropped there.
int64_t LeftInGroup(const std::string& folder, const GroupFiles& files) {
  const auto limit = ReadNumber(folder + "/" + files.limit);
  const auto usage = ReadNumber(folder + "/" + files.usage);
  if (!limit.has_value() || !usage.has_value()) return kUnlimited;
  const auto count = [&folder](const char* field) {
    return ReadField(folder + "/memory.stat", field).value_or(0);
  };
  const int64_t dropped =
      count(files.cached) - count(files.shared) + count(files.caches);
  const int64_t used = std::max<int64_t>(0, *usage - dropped);
  return std::max<int64_t>(0, *limit - used);
}

// The least that the process' group and those around it leave. A container sees
// its own group as the mount, or as a folder below it.
int64_t LeftInGroups(const std::string& root, const GroupFiles& files) {
  int64_t left = kUnlimited;
  std::string folder = GroupFolder(root, files.controller);
  for (;;) {
    left = std::min(left, LeftInGroup(root + files.mount + folder, files));
    if (folder.empty()) return left;
    folder.erase(folder.find_last_of('/'));
  }
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  int64_t left =
      std::min(LeftInGroups(root, kVersion1), LeftInGroups(root, kVersion2));
  const auto kilobytes = ReadField(root + "/proc/meminfo", "MemAvailable:");
  if (kilobytes.has_value()) left = std::min(left, *kilobytes * 1024);
  return left;
}

}  // namespace tfembed
