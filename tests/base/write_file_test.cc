#include "base/write_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WriteFileTest, ReplacesTheWholeFile) {
  std::string path = testing::TempDir() + "/write_file_test";
  ASSERT_TRUE(WriteFile(path, "something long\r\n").ok());
  ASSERT_TRUE(WriteFile(path, absl::string_view("a\0b", 3)).ok());
  EXPECT_EQ(Contents(path), std::string("a\0b", 3));
  std::filesystem::remove(path);
}

TEST(WriteFileTest, AFullDeviceIsAnErrorThatNamesTheFile) {
  absl::Status written = WriteFile("/dev/full", "x");
  EXPECT_TRUE(absl::IsResourceExhausted(written)) << written;
  EXPECT_THAT(written.message(), HasSubstr("/dev/full"));
}

TEST(WriteFileTest, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
  absl::Status written = WriteFile("/nowhere/at/all", "x");
  EXPECT_TRUE(absl::IsNotFound(written)) << written;
  EXPECT_THAT(written.message(), HasSubstr("/nowhere/at/all"));
}

TEST(WriteOutputTest, ADashIsStandardOutput) {
  testing::internal::CaptureStdout();
  absl::Status written = WriteOutput("-", "text\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "text\n");
  EXPECT_TRUE(written.ok()) << written;
}

}  // namespace
}  // namespace weft
