#include "cc/core/step/row_request.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cc/core/step/received_rows.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

TEST(RowRequestTest, EveryKeyHasOnePlaceAmongThoseOfItsShard) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int64_t> key(-50, 50);
  for (const int num_shards : {1, 2, 3, 7}) {
    std::vector<int64_t> keys(200);
    for (int64_t& one : keys) one = key(random);
    keys[0] = std::numeric_limits<int64_t>::min();
    keys[1] = std::numeric_limits<int64_t>::max();
    RowRequest request(keys.size());
    std::vector<int64_t> numbers;
    for (int64_t one : keys) numbers.push_back(request.Add(one));
    std::vector<int32_t> shards;
    DealByRemainder(request.keys(), num_shards, &shards);
    request.Deal(shards, num_shards);
    std::vector<int64_t> by_place;
    for (int s = 0; s < num_shards; ++s) {
      for (int64_t one : request.shard(s)) {
        const int64_t rest = one % num_shards;
        EXPECT_EQ(rest < 0 ? rest + num_shards : rest, s);
        by_place.push_back(one);
      }
    }
    const std::set<int64_t> distinct(keys.begin(), keys.end());
    EXPECT_EQ(by_place.size(), distinct.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(by_place[request.place(numbers[i])], keys[i]);
      EXPECT_EQ(request.Find(keys[i]), numbers[i]);
    }
    EXPECT_EQ(request.Find(51), RowRequest::kNone);
  }
}

TEST(RowRequestTest, AppendedKeysKeepTheirRepeatsInOrder) {
  RowRequest request(4);
  for (int64_t key : {4, 3, 4, 4}) request.Append(key);
  request.Deal({0, 1, 0, 0}, 2);
  EXPECT_EQ(request.shard(0), std::vector<int64_t>({4, 4, 4}));
  EXPECT_EQ(request.shard(1), std::vector<int64_t>({3}));
  EXPECT_EQ(request.place(2), 1);
  EXPECT_EQ(request.place(1), 3);
}

TEST(ReceivedRowsTest, PlacesRunOverAllShards) {
  const std::vector<float> first = {1, 2}, second = {3, 4, 5, 6};
  ReceivedRows rows(2, ValueType());
  rows.Append({reinterpret_cast<const char*>(first.data()), 8});
  rows.Append({reinterpret_cast<const char*>(second.data()), 16});
  const int64_t places[] = {2, 0};
  const float* found[2];
  ASSERT_TRUE(rows.Locate(places, 2, found).ok());
  EXPECT_EQ(found[0], second.data() + 2);
  EXPECT_EQ(found[1], first.data());
  for (const int64_t bad : {-1, 3}) {
    EXPECT_EQ(rows.Locate(&bad, 1, found).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tfembed
