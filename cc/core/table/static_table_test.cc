#include "cc/core/table/static_table.h"

#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

class StaticTableTest : public testing::Test {
 protected:
  StaticTableTest() {
    table_.name = "user";
    table_.values = values_.data();
    table_.slots[0] = slots_.data();
    table_.num_slots = 1;
    table_.num_rows = 5;
    table_.dim = 2;
  }

  std::vector<float> values_ = std::vector<float>(10);
  std::vector<float> slots_ = std::vector<float>(10);
  StaticTable table_;
};

TEST_F(StaticTableTest, LocatesTheRowsOfTheVariable) {
  const int64_t ids[] = {4, 0, 4};
  const float* rows[3];
  EXPECT_EQ(ReadStaticTable(table_)->Locate(ids, 3, rows).value(), 0);
  EXPECT_EQ(rows[0], values_.data() + 8);
  EXPECT_EQ(rows[1], values_.data());
  EXPECT_EQ(rows[2], values_.data() + 8);
}

TEST_F(StaticTableTest, FindsRowsAndSlotsToWrite) {
  const int64_t ids[] = {1, 3};
  MutableRow rows[2];
  WriteStaticTable(table_)->FindOrInsert(0, ids, 2, rows);
  EXPECT_EQ(rows[1].value, values_.data() + 6);
  EXPECT_EQ(rows[1].slots[0], slots_.data() + 6);
}

TEST_F(StaticTableTest, NamesTheIdAndTheTableWhereAnIdIsOutOfRange) {
  for (const int64_t bad :
       {int64_t{-1}, int64_t{5}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    const int64_t ids[] = {0, bad, 1};
    const float* rows[3];
    for (const absl::Status& status :
         {ReadStaticTable(table_)->Locate(ids, 3, rows).status(),
          WriteStaticTable(table_)->Check(ids, 3)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(
          absl::StrContains(status.message(), absl::StrCat("Id ", bad, " is")))
          << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "table 'user'"));
    }
  }
}

TEST_F(StaticTableTest, RefusesEveryIdWhereItHasNoRows) {
  table_.num_rows = 0;
  const int64_t id = 0;
  EXPECT_FALSE(WriteStaticTable(table_)->Check(&id, 1).ok());
}

}  // namespace
}  // namespace tfembed
