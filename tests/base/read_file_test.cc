#include "base/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/write_file.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ReadFileTest : public ::testing::Test {
 protected:
  ReadFileTest() { std::filesystem::create_directories(folder_); }
  ~ReadFileTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ =
      std::filesystem::path(::testing::TempDir()) / ("read_file_" + std::to_string(getpid()));
  const std::string path_ = folder_ + "/file";
};

TEST_F(ReadFileTest, ReadsTheWholeFileUpToTheBound) {
  const std::string content(3'000'000, 'x');
  ASSERT_TRUE(WriteFile(path_, content).ok());
  EXPECT_TRUE(ReadFile(path_, Bytes(3'000'000)).value() == content);
  const absl::Status larger = ReadFile(path_, Bytes(2'999'999)).status();
  EXPECT_EQ(larger.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(larger.message()), StartsWith(path_ + ": has more than 2.86 MiB"));
  ASSERT_TRUE(WriteFile(path_, "").ok());
  EXPECT_EQ(ReadFile(path_).value(), "");
}

TEST_F(ReadFileTest, StopsReadingADeviceWithoutAnEnd) {
  EXPECT_EQ(ReadFile("/dev/zero", MiB(8)).status().message(),
            "/dev/zero: has more than 8 MiB, the most that is read of such a file");
}

TEST_F(ReadFileTest, NamesTheFileThatCannotBeRead) {
  const absl::Status missing = ReadFile(path_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path_));
  EXPECT_THAT(std::string(ReadFile(folder_).status().message()),
              HasSubstr(folder_ + ": Is a directory"));
}

TEST_F(ReadFileTest, TakesADashForStandardInput) {
  ASSERT_TRUE(WriteFile(path_, "words").ok());
  ASSERT_NE(std::freopen(path_.c_str(), "r", stdin), nullptr);
  EXPECT_EQ(ReadInput("-").value(), "words");
  EXPECT_EQ(ReadInput(path_).value(), "words");
}

}  // namespace
}  // namespace weft
