#include "base/first_line.h"

#include <gtest/gtest.h>

#include <string>

#include "base/write_file.h"

namespace weft {
namespace {

TEST(FirstLine, IsWithoutWhiteSpaceAndEmptyWhereThereIsNone) {
  const std::string path = testing::TempDir() + "weft-first-line";
  ASSERT_TRUE(WriteFile(path, " 0x15b3 \t\r\nanother\n").ok());
  EXPECT_EQ(FirstLine(path), "0x15b3");
  ASSERT_TRUE(WriteFile(path, "unended").ok());
  EXPECT_EQ(FirstLine(path), "unended");
  ASSERT_TRUE(WriteFile(path, "").ok());
  EXPECT_EQ(FirstLine(path), "");
  EXPECT_EQ(FirstLine(testing::TempDir()), "");
  EXPECT_EQ(FirstLine(path + ".not-there"), "");
}

}  // namespace
}  // namespace weft
