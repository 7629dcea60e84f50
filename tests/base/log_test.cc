#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Log, LineHasTimeLevelNameAndText) {
  CaptureStderr();
  InitLog("rank 3", LogLevel::kInfo);
  WEFT_LOG_WARN("link to ", 5, " is ", "slow");
  EXPECT_THAT(GetCapturedStderr(),
              MatchesRegex("[0-9:]+\\.[0-9]+ W \\[rank 3\\] link to 5 is slow\n"));
}

TEST(Log, EveryLevelOfTheSettingIsUnderstood) {
  struct Case {
    const char* level;
    bool debug, info, warn, error;
  };
  for (const Case& c :
       {Case{"trace", true, true, true, true}, Case{"debug", true, true, true, true},
        Case{"info", false, true, true, true}, Case{"warn", false, false, true, true},
        Case{"error", false, false, false, true}, Case{"off", false, false, false, false}}) {
    CaptureStderr();
    InitLog("", ParseLogLevel(c.level));
    WEFT_LOG_DEBUG("one");
    WEFT_LOG_INFO("two");
    WEFT_LOG_WARN("three");
    WEFT_LOG_ERROR("four");
    std::string text = GetCapturedStderr();
    EXPECT_EQ(text.find("one") != text.npos, c.debug) << c.level;
    EXPECT_EQ(text.find("two") != text.npos, c.info) << c.level;
    EXPECT_EQ(text.find("three") != text.npos, c.warn) << c.level;
    EXPECT_EQ(text.find("four") != text.npos, c.error) << c.level;
    EXPECT_THAT(text, Not(HasSubstr("[")));  // no name, no brackets
  }
}

std::vector<std::string>& SeenLines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(Log, LinesGoWhereTheSinkSaysUntilItIsTakenBack) {
  SetLogLevel(LogLevel::kInfo);
  SetLogSink([](LogLevel level, absl::string_view text) {
    SeenLines().push_back(absl::StrCat(static_cast<int>(level), " ", text));
  });
  int evaluated = 0;
  WEFT_LOG_DEBUG("below the level ", ++evaluated);
  WEFT_LOG_ERROR("lost ", 2, " of ", 3);
  SetLogSink(nullptr);
  CaptureStderr();
  WEFT_LOG_INFO("again");
  EXPECT_EQ(GetCapturedStderr(), "I again\n");
  EXPECT_THAT(SeenLines(), ElementsAre("3 lost 2 of 3"));
  EXPECT_EQ(evaluated, 0);
}

TEST(Log, TheEnvironmentSaysTheLevelOrNothing) {
  ASSERT_EQ(setenv("WEFT_LOG_LEVEL", "error", 1), 0);
  EXPECT_EQ(EnvironmentLogLevel(LogLevel::kWarn), LogLevel::kError);
  ASSERT_EQ(unsetenv("WEFT_LOG_LEVEL"), 0);
  EXPECT_EQ(EnvironmentLogLevel(LogLevel::kWarn), LogLevel::kWarn);
}

TEST(Log, AFileGetsTheLinesToo) {
  ScratchFolder folder;
  const std::string path = folder.path() + "/log";
  CaptureStderr();
  InitLog("rank 1", LogLevel::kInfo);
  ASSERT_TRUE(AlsoLogTo(path).ok());
  WEFT_LOG_INFO("begun");
  GetCapturedStderr();
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_THAT(line, HasSubstr("begun"));
  EXPECT_EQ(AlsoLogTo("/proc/none/log").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft
