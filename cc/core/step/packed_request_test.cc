#include "cc/core/step/packed_request.h"

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

const std::vector<int64_t> kNarrow = {7, -1, 1 << 30};
const std::vector<int64_t> kWide = {std::numeric_limits<int64_t>::min(), 3};
const std::vector<absl::string_view> kTexts = {"", "a", "\xff longer than 8"};

std::vector<RequestPart> Parts() {
  std::vector<RequestPart> parts(4);
  parts[0].dim = 2;
  parts[0].keys = kNarrow;
  parts[1].dim = 3;
  parts[1].keys = kWide;
  parts[2].dim = 1;
  parts[2].are_strings = true;
  parts[2].strings = kTexts;
  parts[3].dim = 5;  // No keys.
  return parts;
}

std::vector<char> Packed(const std::vector<RequestPart>& parts,
                         ValueType numbers = {}) {
  const RequestPacker packer(parts, numbers);
  std::vector<char> message(packer.size());
  packer.Pack(message.data());
  return message;
}

// Parses bytes that lie alone, so that a read beyond them is found.
absl::StatusOr<ReceivedRequest> Parse(const std::vector<char>& message) {
  static std::unique_ptr<char[]> alone;
  alone.reset(new char[message.size()]);
  std::copy(message.begin(), message.end(), alone.get());
  return ReceivedRequest::Parse({alone.get(), message.size()});
}

TEST(PackedRequestTest, KeysArriveAsTheyWere) {
  for (const ElementKind kind :
       {ElementKind::kFloat32, ElementKind::kBfloat16, ElementKind::kFloat16}) {
    const auto request = Parse(Packed(Parts(), kind));
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_EQ(request->parts().size(), 4);
    EXPECT_EQ(request->parts()[0].keys, kNarrow);
    EXPECT_EQ(request->parts()[1].keys, kWide);
    EXPECT_EQ(request->parts()[2].strings, kTexts);
    EXPECT_TRUE(request->parts()[2].are_strings);
    EXPECT_EQ(request->parts()[3].size(), 0);
    EXPECT_EQ(request->parts()[1].dim, 3);
    EXPECT_EQ(request->numbers(), ValueType(kind));
    EXPECT_EQ(request->RowBytes(), ValueType(kind).size() * (6 + 6 + 3));
  }
}

TEST(PackedRequestTest, SmallIntegersTakeFourBytes) {
  std::vector<RequestPart> parts(1);
  parts[0].dim = 1;
  parts[0].keys = kNarrow;
  EXPECT_EQ(Packed(parts).size(), kMessageHeader + 16 + 16);
  parts[0].keys = kWide;
  EXPECT_EQ(Packed(parts).size(), kMessageHeader + 16 + 16);
}

TEST(PackedRequestTest, RowsAreThoseOfTheirRequest) {
  const auto request = Parse(Packed(Parts()));
  ASSERT_TRUE(request.ok());
  const int64_t bytes = request->RowBytes();
  std::vector<char> rows(kMessageHeader + bytes);
  PackHeader(MessageKind::kRows, ValueType(), bytes, rows.data());
  const auto parts = ParseRows(MessageKind::kRows, *request, rows);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ((*parts)[1].data(), rows.data() + kMessageHeader + 6 * 4);
  EXPECT_EQ((*parts)[1].size(), 6 * 4);
  // Other sizes, numbers and kinds are refused.
  EXPECT_FALSE(ParseRows(MessageKind::kSums, *request, rows).ok());
  const auto halves = Parse(Packed(Parts(), ElementKind::kFloat16));
  EXPECT_FALSE(ParseRows(MessageKind::kRows, *halves, rows).ok());
  PackHeader(MessageKind::kRows, ValueType(), bytes - 4, rows.data());
  rows.resize(rows.size() - 4);
  const auto refused = ParseRows(MessageKind::kRows, *request, rows).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
}

TEST(PackedRequestTest, AnErrorArrivesInPlaceOfKeysOrSums) {
  const absl::Status error = absl::ResourceExhaustedError("worker 3 is full");
  EXPECT_EQ(Parse(PackError(MessageKind::kRequest, error)).status(), error);
  const auto request = Parse(Packed(Parts()));
  EXPECT_EQ(ParseRows(MessageKind::kSums, *request,
                      PackError(MessageKind::kSums, error))
                .status(),
            error);
}

// Whatever is not a whole request is refused as such, and nothing is read
// beyond it (AddressSanitizer watches).
TEST(PackedRequestTest, DamagedRequestsAreInvalidArguments) {
  const std::vector<char> whole = Packed(Parts());
  const auto expect_refused = [](const std::vector<char>& message) {
    const auto parsed = Parse(message);
    if (parsed.ok()) return false;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    return true;
  };
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(expect_refused({whole.begin(), whole.begin() + size}));
  }
  std::vector<char> longer = whole;
  longer.resize(longer.size() + 8);
  EXPECT_TRUE(expect_refused(longer));
  // Beside the status, which is an error's code, any byte may be any.
  constexpr size_t kStatus = 8, kNumbers = 12;
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> place(0, whole.size() - 1);
  std::uniform_int_distribution<int> byte(0, 255);
  for (int i = 0; i < 20000; ++i) {
    std::vector<char> message = whole;
    const int changes = 1 + i % 4;
    for (int c = 0; c < changes; ++c) {
      const size_t at = place(random);
      if (at >= kStatus && at < kNumbers) continue;
      message[at] = static_cast<char>(byte(random));
    }
    if (i % 2 == 0) {  // Cut, with a header that agrees.
      message.resize(kMessageHeader + place(random) % 64);
      const uint64_t bytes = message.size() - kMessageHeader;
      std::memcpy(message.data() + 24, &bytes, sizeof(bytes));
    }
    expect_refused(message);
  }
  std::vector<char> foreign(200, 'x');
  EXPECT_TRUE(expect_refused(foreign));
  std::vector<char> bad_status = whole;
  bad_status[kStatus] = 77;
  EXPECT_TRUE(expect_refused(bad_status));
}

}  // namespace
}  // namespace tfembed
