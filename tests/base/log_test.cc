#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Log, LineHasTimeLevelNameAndText) {
  CaptureStderr();
  InitLog("rank 3", "info");
  WEFT_LOG_WARN("link to {} is {}", 5, "slow");
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
    InitLog("", c.level);
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

}  // namespace
}  // namespace weft
