#include <filesystem>
#include <fstream>
#include <limits>

#include "cc/core/support/memory_promise.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A system's files in a folder of their own.
class AvailableMemoryTest : public ::testing::Test {
 protected:
  AvailableMemoryTest()
      : root_(std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  int64_t Available() { return AvailableMemory(root_.string()); }

 private:
  const std::filesystem::path root_;
};

TEST_F(AvailableMemoryTest, IsUnlimitedWhereNothingTells) {
  EXPECT_EQ(Available(), kUnlimited);
}

TEST_F(AvailableMemoryTest, IsWhatTheSystemHas) {
  Write("proc/meminfo",
        "MemTotal:  9000 kB\nMemFree:  7 kB\nMemAvailable:  500 kB\n");
  EXPECT_EQ(Available(), 500 * 1024);
}

TEST_F(AvailableMemoryTest, IsWhatAContainersGroupLeaves) {
  Write("proc/meminfo", "MemAvailable: 500 kB\n");
  Write("sys/fs/cgroup/memory.max", "100000\n");
  Write("sys/fs/cgroup/memory.current", "90000\n");
  // Shared memory holds no file that could be dropped.
  Write("sys/fs/cgroup/memory.stat",
        "anon 50000\nfile 32000\nshmem 7000\nslab_reclaimable 5000\n");
  EXPECT_EQ(Available(), 40000);
  Write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Available(), 500 * 1024);
}

TEST_F(AvailableMemoryTest, IsWhatTheProcessGroupBelowTheMountLeaves) {
  Write("proc/self/cgroup", "0::/user/job\n");
  Write("sys/fs/cgroup/user/job/memory.max", "100000\n");
  Write("sys/fs/cgroup/user/job/memory.current", "120000\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(AvailableMemoryTest, IsNoMoreThanAGroupAroundItLeaves) {
  Write("proc/self/cgroup", "0::/user/job/part\n");
  for (const std::string group : {"user/job/part", "user/job"}) {
    Write("sys/fs/cgroup/" + group + "/memory.max", "100000\n");
    Write("sys/fs/cgroup/" + group + "/memory.current", "20000\n");
  }
  Write("sys/fs/cgroup/user/memory.max", "100000\n");
  Write("sys/fs/cgroup/user/memory.current", "70000\n");
  EXPECT_EQ(Available(), 30000);
}

TEST_F(AvailableMemoryTest, KnowsVersionOneOfGroups) {
  Write("proc/self/cgroup", "7:cpu,memory:/job\n3:pids:/other\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "100000\n");
  Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "50000\n");
  Write("sys/fs/cgroup/memory/job/memory.stat",
        "total_cache 8000\ntotal_shmem 3000\n");
  EXPECT_EQ(Available(), 55000);
}

}  // namespace
}  // namespace tfembed
