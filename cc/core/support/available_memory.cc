#include "cc/core/support/available_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>

namespace tfembed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Limits beyond are none: how version 1 says so depends on the page's size.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  if (file >> number) return number;  // Not where it says "max".
  return std::nullopt;
}

// The numbers behind words in a file of a word and a number a line, -1 where
// there is none.
template <size_t n>
std::array<int64_t, n> ReadFields(const std::string& path,
                                  const std::array<const char*, n>& names) {
  std::array<int64_t, n> numbers;
  numbers.fill(-1);
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t end = line.find(' ');
    for (size_t i = 0; i < n && end != line.npos; ++i) {
      if (line.compare(0, end, names[i]) != 0) continue;
      numbers[i] = std::strtoll(line.c_str() + end, nullptr, 10);
    }
  }
  return numbers;
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
  const char* caches;  // The kernel's own; "": not among the usage.
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

// The bytes that a group's limit leaves, droppable caches included.
int64_t LeftInGroup(const std::string& folder, const GroupFiles& files) {
  const auto limit = ReadNumber(folder + "/" + files.limit);
  if (limit.value_or(kUnlimited) > kNoLimit) return kUnlimited;
  const auto usage = ReadNumber(folder + "/" + files.usage);
  if (!usage.has_value()) return kUnlimited;
  const auto [cached, shared, caches] = ReadFields<3>(
      folder + "/memory.stat", {files.cached, files.shared, files.caches});
  const auto dropped = std::max<int64_t>(0, cached) -
                       std::max<int64_t>(0, shared) +
                       std::max<int64_t>(0, caches);
  const int64_t used = std::max<int64_t>(0, *usage - dropped);
  return std::max<int64_t>(0, *limit - used);
}

// The least that the process' group and those around it leave. A container sees
// its own group as the mount, or as a folder below it.
int64_t LeftInGroups(const std::string& root, const GroupFiles& files) {
  int64_t left = kUnlimited;
  std::string folder = GroupFolder(root, files.controller);
  if (folder == "/") folder.clear();
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
  const auto [kilobytes] =
      ReadFields<1>(root + "/proc/meminfo", {"MemAvailable:"});
  return kilobytes < 0 ? left : std::min(left, kilobytes * 1024);
}

}  // namespace tfembed
