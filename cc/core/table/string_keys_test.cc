#include "cc/core/table/string_keys.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using Views = std::vector<absl::string_view>;

// Three fingerprints for all strings.
uint64_t WeakHash(absl::string_view text) {
  return text.empty() ? 0 : static_cast<uint64_t>(text[0] % 3);
}

std::unique_ptr<StringKeys> MakeKeys() { return *StringKeys::Create(); }
std::unique_ptr<StringKeys> MakeWeakKeys() {
  return *StringKeys::Create(WeakHash);
}

std::vector<int64_t> Found(const StringKeys& keys, const Views& strings) {
  std::vector<int64_t> found(strings.size());
  keys.Find(strings, found.data(), nullptr);
  return found;
}

std::vector<int64_t> Added(StringKeys* keys, const Views& strings) {
  std::vector<int64_t> added(strings.size());
  EXPECT_TRUE(keys->Add(strings, added.data(), nullptr).ok());
  return added;
}

std::vector<std::string> StringsOf(const StringKeys& keys,
                                   const std::vector<int64_t>& of) {
  Views views(of.size());
  keys.Strings(of, views.data());
  std::vector<std::string> strings;
  for (absl::string_view view : views) {
    strings.push_back(view.data() == nullptr ? "(none)" : std::string(view));
  }
  return strings;
}

void RemoveAll(StringKeys* keys, const std::vector<int64_t>& of) {
  keys->Remove(of, [](absl::Span<const int64_t> keys, bool* used) {
    std::fill_n(used, keys.size(), false);
  });
}

TEST(StringKeys, AMissingStringHasTheKeyThatItGets) {
  for (auto& keys : {MakeKeys().release(), MakeWeakKeys().release()}) {
    const std::unique_ptr<StringKeys> owner(keys);
    for (const char* text :
         {"a", "b", "c", "", "d", "a longer one than 20 b"}) {
      const auto before = Found(*keys, {text});
      EXPECT_EQ(Added(keys, {text}), before) << text;
      EXPECT_EQ(Found(*keys, {text}), before) << text;
      EXPECT_EQ(StringsOf(*keys, before), std::vector<std::string>{text});
    }
  }
}

TEST(StringKeys, StringsOfOneFingerprintHaveKeysOfTheirOwn) {
  auto keys = MakeWeakKeys();
  std::vector<std::string> strings;
  for (int i = 0; i < 60; ++i) strings.push_back("x" + std::to_string(i));
  const Views views(strings.begin(), strings.end());
  const auto added = Added(keys.get(), views);
  EXPECT_EQ(std::set<int64_t>(added.begin(), added.end()).size(), 60u);
  EXPECT_EQ(StringsOf(*keys, added), strings);
  EXPECT_EQ(Found(*keys, views), added);
}

TEST(StringKeys, RemovalLeavesOthersOfTheFingerprintWhereTheyAre) {
  auto keys = MakeWeakKeys();
  const auto added = Added(keys.get(), {"x1", "x2", "x3"});
  RemoveAll(keys.get(), {added[0]});
  EXPECT_EQ(Found(*keys, {"x2", "x3"}),
            (std::vector<int64_t>{added[1], added[2]}));
  EXPECT_EQ(Added(keys.get(), {"x3", "x4"}),
            (std::vector<int64_t>{added[2], added[0]}));
  EXPECT_EQ(keys->size(), 3);
}

TEST(StringKeys, RepeatedStringsHaveOneKey) {
  auto keys = MakeKeys();
  const auto added = Added(keys.get(), {"a", "b", "a", "a"});
  EXPECT_EQ(added[0], added[2]);
  EXPECT_EQ(added[0], added[3]);
  EXPECT_EQ(keys->size(), 2);
}

TEST(StringKeys, ZeroBytesCount) {
  auto keys = MakeKeys();
  const auto added = Added(keys.get(), {absl::string_view("a\0b", 3), "a",
                                        absl::string_view("a\0", 2)});
  EXPECT_EQ(keys->size(), 3);
  EXPECT_EQ(StringsOf(*keys, added)[0], std::string("a\0b", 3));
}

TEST(StringKeys, KeepRemovesWhatIsNotInUseAndItsMemory) {
  auto keys = MakeKeys();
  const std::string longer(1000, 'x');
  const auto added = Added(keys.get(), {"a", longer, "c"});
  const int64_t full = keys->bytes();
  keys->Keep([&added](absl::Span<const int64_t> keys, bool* used) {
    for (size_t i = 0; i < keys.size(); ++i) used[i] = keys[i] != added[1];
  });
  EXPECT_EQ(keys->bytes(), full - 1000 + 16 * 4);  // A list of free cells.
  EXPECT_EQ(StringsOf(*keys, added),
            (std::vector<std::string>{"a", "(none)", "c"}));
}

TEST(StringKeys, ClearForgetsAll) {
  auto keys = MakeKeys();
  const auto added = Added(keys.get(), {"a", std::string(50, 'b')});
  keys->Clear([] {});
  EXPECT_EQ(keys->size(), 0);
  EXPECT_EQ(Added(keys.get(), {"a"})[0], added[0]);
}

TEST(StringKeys, ManyThreadsAgreeOnTheKeys) {
  ThreadExecutor executor(4);
  auto keys = MakeKeys();
  std::vector<std::string> strings;
  for (int i = 0; i < 30000; ++i) {
    strings.push_back("key " + std::to_string(i % 20000));
  }
  const Views views(strings.begin(), strings.end());
  std::vector<int64_t> results[2];
  ParallelFor(&executor, 2, [&](int64_t i) {
    results[i].resize(views.size());
    EXPECT_TRUE(keys->Add(views, results[i].data(), nullptr).ok());
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(keys->size(), 20000);
  std::vector<int64_t> found(views.size());
  keys->Find(views, found.data(), &executor);
  EXPECT_EQ(found, results[0]);
}

TEST(StringKeys, ABatchIsAddedByManyThreadsAsByOne) {
  ThreadExecutor executor(4);
  std::vector<std::string> strings;
  for (int i = 0; i < 5000; ++i) {
    strings.push_back(std::to_string(i % 3700) + std::string(i % 40, 'x'));
  }
  const Views views(strings.begin(), strings.end());
  for (const bool weak : {false, true}) {
    // All of a weak fingerprint go into three stripes, one after the other.
    const Views batch(views.begin(), views.begin() + (weak ? 600 : 5000));
    const auto alone = weak ? MakeWeakKeys() : MakeKeys();
    const auto shared = weak ? MakeWeakKeys() : MakeKeys();
    const auto expected = Added(alone.get(), batch);
    std::vector<int64_t> added(batch.size());
    ASSERT_TRUE(shared->Add(batch, added.data(), &executor).ok());
    EXPECT_EQ(added, expected);
    EXPECT_EQ(Found(*shared, batch), expected);
    EXPECT_EQ(shared->size(), alone->size());
    EXPECT_EQ(shared->bytes(), alone->bytes());
  }
}

}  // namespace
}  // namespace tfembed
