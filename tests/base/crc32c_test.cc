#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace weft {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, GivesTheValuesOfTheStandard) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(Crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc32c(""), 0U);
}

TEST(Crc32c, IsTheSameByInstructionByTableAndInPieces) {
  Random random(1);
  std::vector<std::byte> bytes(1000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    size_t begin = random.Below(100);  // at every alignment
    auto part = absl::MakeConstSpan(bytes).subspan(begin, random.Below(900));
    auto before = static_cast<uint32_t>(random());
    EXPECT_EQ(Crc32c(part, before), internal::Crc32cByTable(part, before));
    size_t cut = random.Below(part.size() + 1);
    EXPECT_EQ(Crc32c(part.subspan(cut), Crc32c(part.subspan(0, cut))), Crc32c(part));
  }
}

TEST(Crc32c, OfASecondPartIsKnownFromThoseOfTheFirstAndOfBoth) {
  Random random(3);
  std::vector<std::byte> bytes(20'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    auto both = absl::MakeConstSpan(bytes).first(random.Below(bytes.size() + 1));
    auto first = both.first(random.Below(both.size() + 1)), second = both.subspan(first.size());
    EXPECT_EQ(Crc32cOfSecond(Crc32c(first), Crc32c(both), second.size()), Crc32c(second));
  }
}

// Long ones are taken in lanes side by side.
TEST(Crc32c, IsTheSameByInstructionAndByTableWhereItIsLong) {
  Random random(2);
  std::vector<std::byte> bytes(20'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t size : {3071, 3072, 3073, 3080, 6143, 6144, 9216, 19'990}) {
    auto part = absl::MakeConstSpan(bytes).subspan(random.Below(10), size);
    auto before = static_cast<uint32_t>(random());
    EXPECT_EQ(Crc32c(part, before), internal::Crc32cByTable(part, before)) << size;
  }
}

}  // namespace
}  // namespace weft
