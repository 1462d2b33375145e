#include "cc/core/support/page_collapser.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cc/core/support/memory_block.h"
#include "cc/core/testing/huge_page_use.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr size_t kBytes = 8 * kHugePageBytes;

// Memory on small pages, written.
class TouchedPages {
 public:
  TouchedPages()
      : data_(
            static_cast<uint32_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::iota(begin(), end(), 0u);
  }
  TouchedPages(const TouchedPages&) = delete;
  TouchedPages& operator=(const TouchedPages&) = delete;
  ~TouchedPages() { munmap(data_, kBytes); }

  uint32_t* begin() { return data_; }
  uint32_t* end() { return data_ + kBytes / sizeof(uint32_t); }

  bool IsAsWritten() {
    uint32_t expected = 0;
    return std::all_of(begin(), end(),
                       [&](uint32_t x) { return x == expected++; });
  }

 private:
  uint32_t* const data_;
};

TEST(PageCollapserTest, MovesWhatIsWholeAndKeepsItsContents) {
  const bool can_collapse = CanCollapse();
  TouchedPages pages;
  const int64_t before = HugePageKib();
  PageCollapser collapser;

  collapser.Note(&pages, pages.begin(), kBytes);
  collapser.Wait();

  EXPECT_TRUE(pages.IsAsWritten());
  // All but what may be cut off at either end.
  const int64_t least = (kBytes - 2 * kHugePageBytes) / 1024;
  if (can_collapse) {
    EXPECT_GE(HugePageKib() - before, least);
  }
}

TEST(PageCollapserTest, LeavesLittleMemoryAlone) {
  TouchedPages pages;
  const int64_t before = HugePageKib();
  PageCollapser collapser;

  collapser.Note(&pages, pages.begin(), kHugePageBytes);
  collapser.Wait();

  EXPECT_EQ(HugePageKib(), before);
  EXPECT_TRUE(pages.IsAsWritten());
}

TEST(PageCollapserTest, OutlivesMemoryThatIsGone) {
  PageCollapser collapser;
  {
    TouchedPages pages;
    collapser.Note(&collapser, pages.begin(), kBytes);
  }
  collapser.Note(nullptr, nullptr, kBytes);
  collapser.Wait();
}

TEST(PageCollapserTest, EndsWithWorkLeft) {
  std::vector<TouchedPages> pages(4);
  PageCollapser collapser;
  for (TouchedPages& each : pages) collapser.Note(&each, each.begin(), kBytes);
}

TEST(PageCollapserTest, TakesRowsThatMoved) {
  TouchedPages first, second;
  PageCollapser collapser;

  collapser.Note(&collapser, first.begin(), kBytes);
  collapser.Wait();
  const int64_t before = HugePageKib();
  collapser.Note(&collapser, second.begin(), kBytes);
  collapser.Wait();

  if (CanCollapse()) {
    EXPECT_GT(HugePageKib(), before);
  }
  EXPECT_TRUE(first.IsAsWritten());
  EXPECT_TRUE(second.IsAsWritten());
}

}  // namespace
}  // namespace tfembed
