#include "base/little_endian.h"

#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

TEST(LittleEndian, BeginsWithTheLowestByte) {
  std::string bytes;
  PutLittle(bytes, uint32_t{0x01020384});
  PutLittle(bytes, int16_t{-2});
  EXPECT_EQ(bytes, "\x84\x03\x02\x01\xfe\xff");
  EXPECT_EQ(LoadLittle<uint32_t>(bytes), 0x01020384);
  EXPECT_EQ(LoadLittle<int16_t>(bytes.substr(4)), -2);
}

TEST(LittleEndian, IsTakenOffTheFrontOrNotAtAll) {
  absl::string_view bytes("\x05\x06\x07", 3);
  uint16_t value = 0;
  ASSERT_TRUE(TakeLittle(bytes, &value));
  EXPECT_EQ(value, 0x0605);
  EXPECT_FALSE(TakeLittle(bytes, &value));
  EXPECT_EQ(value, 0x0605);
  EXPECT_EQ(bytes, "\x07");
}

}  // namespace
}  // namespace weft
