#include "base/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(Utf8, WellFormedTextIsTaken) {
  EXPECT_TRUE(CheckUtf8("", "f").ok());
  EXPECT_TRUE(CheckUtf8("plain\n", "f").ok());
  EXPECT_TRUE(CheckUtf8("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf", "f").ok());
}

TEST(Utf8, WhatIsNoCharacterIsNamedWithItsLine) {
  const std::string bad[] = {"\x80",
                             "\xc3",
                             "\xc0\x80",
                             "\xc3(",
                             "\xe2\x82",
                             "\xe0\x80\x80",
                             "\xed\xa0\x80",
                             "\xf0\x80\x80\x80",
                             "\xf5\x80\x80\x80",
                             "\xff",
                             "\xf4\x90\x80\x80"};
  for (const std::string& text : bad) {
    absl::Status status = CheckUtf8("a = 1\nb = '" + text + "'", "fabric.toml");
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("fabric.toml:2: ")) << status;
  }
}

}  // namespace
}  // namespace weft
