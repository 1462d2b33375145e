// Bytes that are no sealed table are refused, and never read beyond their end:
// the kind of what reads files. cc/kernels/checkpoint_index has its tests in
// tests/checkpoint/test_crafted_files.py.
#include "cc/core/sealed/sealed_table.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "cc/core/sealed/string_hash.h"
#include "cc/core/support/half.h"
#include "cc/core/testing/sealed_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<SealedTable> Opened(const LineBytes& bytes) {
  std::string fault;
  auto table = SealedTable::Open(bytes.data(), bytes.size(), &fault);
  EXPECT_TRUE(table) << fault;
  return table;
}

int64_t Key(int64_t i) { return i * 977 - 5000; }

// Rows of floats; that of key i begins with i and i + 0.5.
TableToSeal Floats(int64_t count, int64_t dim, int64_t regions) {
  TableToSeal table;
  table.dim = dim;
  table.regions = regions;
  for (int64_t i = 0; i < count; ++i) table.keys.push_back({Key(i), 0});
  table.write_row = [dim](int64_t i, char* row) {
    for (int64_t j = 0; j < dim; ++j) {
      const float number = i + 0.5f * j;
      std::memcpy(row + 4 * j, &number, 4);
    }
  };
  return table;
}

TEST(SealedTable, FindsAllKeysOfItsRegionsAndNoOthers) {
  for (const auto& [count, dim, regions] : std::vector<std::array<int64_t, 3>>{
           {0, 4, 1}, {1, 1, 1}, {2, 4, 1}, {1000, 3, 1}, {9000, 16, 8}}) {
    const LineBytes bytes = SealedBytes(Floats(count, dim, regions));
    const auto table = Opened(bytes);
    EXPECT_EQ(table->num_rows(), count);
    EXPECT_TRUE(table->IsWhole());
    std::vector<int64_t> keys;
    for (int64_t i = -70; i < count + 70; ++i) keys.push_back(Key(i));
    std::vector<float> rows(keys.size() * dim);
    std::vector<uint8_t> exists(keys.size(), 2);

    table->Find(keys.data(), keys.size(), rows.data(), exists.data());
    for (int64_t i = -70; i < count + 70; ++i) {
      const bool is_there = i >= 0 && i < count;
      ASSERT_EQ(exists[i + 70], is_there);
      for (int64_t j = 0; j < dim; ++j) {
        ASSERT_EQ(rows[(i + 70) * dim + j], is_there ? i + 0.5f * j : 0.25f);
      }
    }
  }
}

TEST(SealedTable, WritesLargeBatchesPastTheCaches) {
  for (const bool has_steps : {false, true}) {
    TableToSeal sealed = Floats(50, 1024, 1);
    sealed.has_steps = has_steps;
    if (has_steps) {
      sealed.write_row = [](int64_t i, char* row) {
        const uint16_t scales[] = {Half::Of(0).bits, Half::Of(1).bits};
        std::memcpy(row, scales, 4);
        row[4 + 1023] = static_cast<char>(i);
      };
    }
    const LineBytes bytes = SealedBytes(sealed);
    const auto table = Opened(bytes);
    constexpr int64_t kKeys = 2100;  // 8.6 MB of rows.
    const LineBytes rows(kKeys * 4096);
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < kKeys; ++i) keys.push_back(Key(i % 51));

    table->Find(keys.data(), kKeys, rows.data(), nullptr);

    const auto* const numbers = reinterpret_cast<float*>(rows.data());
    for (int64_t i = 0; i < kKeys; ++i) {
      const float last = i % 51 == 50 ? 0.25f
                         : has_steps  ? i % 51
                                      : i % 51 + 0.5f * 1023;
      ASSERT_EQ(numbers[i * 1024 + 1023], last);
    }
  }
}

TEST(SealedTable, FindsWhichKeysAreThereAloneOrRowsAlone) {
  const LineBytes bytes = SealedBytes(Floats(3, 2, 1));
  const auto table = Opened(bytes);
  const std::vector<int64_t> keys = {Key(2), Key(3)};
  std::vector<float> rows(4);
  std::vector<uint8_t> exists(2);

  table->Find(keys.data(), 2, nullptr, exists.data());
  table->Find(keys.data(), 2, rows.data(), nullptr);

  EXPECT_THAT(exists, ElementsAre(1, 0));
  EXPECT_THAT(rows, ElementsAre(2, 2.5f, 0.25f, 0.25f));
}

TEST(SealedTable, KnowsStringsByTwoHashesAndDrawsTheirInitialRows) {
  constexpr uint64_t kBuckets = (uint64_t{1} << 63) - 1;
  TableToSeal sealed = Floats(0, 2, 1);
  sealed.key_words = 2;
  sealed.secret = {5, 6};
  sealed.kind = 2;  // Uniform.
  sealed.arguments = {-1, 1};
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(std::string(i, 'x'));
  for (const std::string& text : texts) {
    sealed.keys.push_back(
        {static_cast<int64_t>(KeyedStringHash(text, 5, 6) % kBuckets),
         static_cast<int64_t>(Fingerprint64(text) % kBuckets)});
  }
  const LineBytes bytes = SealedBytes(sealed);
  const auto table = Opened(bytes);
  ASSERT_TRUE(table->has_string_keys());
  std::vector<absl::string_view> keys(texts.begin(), texts.end());
  keys.push_back("stranger");
  std::vector<float> rows(keys.size() * 2);
  std::vector<uint8_t> exists(keys.size());

  table->Find(keys.data(), keys.size(), rows.data(), exists.data());

  EXPECT_EQ(exists.back(), 0);
  exists.pop_back();
  EXPECT_THAT(exists, Each(1));
  EXPECT_EQ(rows[2 * 150 + 1], 150.5f);
  EXPECT_LT(std::fabs(rows[2 * 200]), 1);
  EXPECT_NE(rows[2 * 200], rows[2 * 200 + 1]);
}

// The row of the one key of a table, whose stored row is `stored`.
template <typename T>
std::vector<T> RowOf(TableToSeal table, const void* stored, int64_t size) {
  table.keys = {{7, 0}};
  table.write_row = [&](int64_t, char* row) { std::memcpy(row, stored, size); };
  const LineBytes bytes = SealedBytes(table);
  std::vector<T> row(table.dim);
  const int64_t key = 7;
  Opened(bytes)->Find(&key, 1, row.data(), nullptr);
  return row;
}

TEST(SealedTable, ReadsRowsInTheirDtypeWhateverTheyAreStoredIn) {
  TableToSeal table;
  table.dim = 3;
  const uint16_t halves[] = {Bfloat16::Of(1).bits, Bfloat16::Of(-2.5).bits,
                             0xff80};
  table.dtype = 14;
  table.number_bytes = 2;
  EXPECT_THAT(RowOf<float>(table, halves, 6),
              ElementsAre(1, -2.5, -std::numeric_limits<float>::infinity()));
  table.trained = 2;
  EXPECT_EQ(RowOf<double>(table, halves, 6)[1], -2.5);
  table.trained = 19;
  EXPECT_EQ(RowOf<uint16_t>(table, halves, 6)[1], Half::Of(-2.5).bits);
  table.trained = 14;
  EXPECT_EQ(RowOf<uint16_t>(table, halves, 6)[2], 0xff80);

  char steps[7] = {0, 0, 0, 0, 0, 10, static_cast<char>(255)};
  const uint16_t scales[] = {Half::Of(-1).bits, Half::Of(0.125).bits};
  std::memcpy(steps, scales, 4);
  table.dtype = table.trained = 1;
  table.has_steps = true;
  EXPECT_THAT(RowOf<float>(table, steps, 7), ElementsAre(-1, 0.25, 30.875));

  table.has_steps = false;
  table.number_bytes = 1;
  table.dtype = table.trained = 10;
  const uint8_t booleans[] = {0, 1, 200};
  EXPECT_THAT(RowOf<uint8_t>(table, booleans, 3), ElementsAre(0, 1, 1));

  table.number_bytes = 4;
  table.dtype = table.trained = 1;
  const float nan[] = {1, std::nanf(""), 3};
  EXPECT_TRUE(std::isnan(RowOf<float>(table, nan, 12)[1]));
}

TEST(SealedTable, RefusesRowsThatHaveNoFormInTheirDtype) {
  TableToSeal table = Floats(1, 2, 1);
  table.trained = 3;  // Rows of float32 for int32.
  const LineBytes bytes = SealedBytes(table);
  std::string fault;

  EXPECT_FALSE(SealedTable::Open(bytes.data(), bytes.size(), &fault));
  EXPECT_THAT(fault, HasSubstr("rows of float32 for int32"));
}

// Looks some keys up, whatever the bytes say that the table has.
void FindSome(const SealedTable& table) {
  std::vector<char> rows(130 * table.dim() * table.type().size());
  std::vector<uint8_t> exists(130);
  std::vector<int64_t> keys;
  std::vector<absl::string_view> texts(130, "text");
  for (int64_t i = 0; i < 130; ++i) keys.push_back(Key(i));
  if (table.has_string_keys()) {
    table.Find(texts.data(), texts.size(), rows.data(), exists.data());
  } else {
    table.Find(keys.data(), keys.size(), rows.data(), exists.data());
  }
}

TEST(SealedTable, FindsAnyByteThatIsFlippedAndRefusesAnyThatIsMissing) {
  const LineBytes whole = SealedBytes(Floats(60, 2, 2));
  for (int64_t at = 0; at < whole.size(); ++at) {
    const LineBytes bytes = whole.First(whole.size());
    bytes.data()[at] ^= static_cast<char>(1 << at % 8);
    std::string fault;
    const auto table = SealedTable::Open(bytes.data(), bytes.size(), &fault);
    if (table) {
      FindSome(*table);
      ASSERT_FALSE(table->IsWhole()) << at;
    } else {
      ASSERT_NE(fault, "");
    }
  }
  for (int64_t size = 0; size < whole.size(); ++size) {
    const LineBytes bytes = whole.First(size);
    std::string fault;
    ASSERT_FALSE(SealedTable::Open(bytes.data(), bytes.size(), &fault));
  }
}

TEST(SealedTable, ReadsNothingBeyondBytesThatSomebodyWroteToHarm) {
  // Checksums are those of the bytes, whatever they are.
  TableToSeal sealed = Floats(60, 2, 2);
  sealed.kind = 2;
  sealed.arguments = {-1, 1};
  const LineBytes whole = SealedBytes(sealed);
  int64_t begins[4];
  std::memcpy(begins, whole.data() + 72, sizeof(begins));
  const int64_t at_checks = whole.size() - 64;
  std::mt19937_64 random(1);
  int opened = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const LineBytes bytes = whole.First(whole.size());
    for (int count = 1 + random() % 3; count > 0; --count) {
      const int64_t number = 1 + random() % 22;
      auto* const words = reinterpret_cast<int64_t*>(bytes.data());
      switch (random() % 4) {
        case 0:
          words[number] = random();
          break;
        case 1:
          words[number] = int64_t{1} << random() % 64;
          break;
        case 2:
          words[number] += static_cast<int64_t>(random() % 9) - 4;
          break;
        default:
          bytes.data()[random() % at_checks] = static_cast<char>(random());
      }
    }
    SumUp(begins[0], at_checks, &bytes);
    std::string fault;
    const auto table = SealedTable::Open(bytes.data(), bytes.size(), &fault);
    if (!table) continue;
    ++opened;
    FindSome(*table);
  }
  EXPECT_GT(opened, 1000);
}

}  // namespace
}  // namespace tfembed
