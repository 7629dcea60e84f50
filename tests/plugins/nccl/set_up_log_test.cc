#include "plugins/nccl/set_up_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::nccl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SetUpLogTest, SaysWhatEachPhaseTookOnceAndAtMostOnceASecond) {
  SetUpLog log;
  const absl::Time start = absl::UnixEpoch();
  const auto at = [&](int milliseconds) { return start + absl::Milliseconds(milliseconds); };
  log.Add(SetUpPhase::kListen, at(0), at(1));
  EXPECT_EQ(log.TakeLine(at(1), true), "") << "no connection stands yet";
  log.Add(SetUpPhase::kHandshake, at(1), at(11));
  log.Add(SetUpPhase::kHandshake, at(1), at(31));
  log.AddConnection(at(1), at(20));
  log.AddConnection(at(1), at(40));
  EXPECT_EQ(log.TakeLine(at(50), false),
            "2 ends of connections set up within 40 ms: listen 1 x 1 ms (longest 1 ms), "
            "handshake 2 x 20 ms (longest 30 ms)");
  EXPECT_EQ(log.TakeLine(at(5000), true), "") << "it was said";
  log.AddConnection(at(60), at(70));
  EXPECT_EQ(log.TakeLine(at(1049), false), "");
  EXPECT_THAT(log.TakeLine(at(1050), false), AllOf(HasSubstr("1 ends"), HasSubstr("within 10 ms")));
  log.AddConnection(at(1100), at(1101));
  EXPECT_THAT(log.TakeLine(at(1102), true), HasSubstr("1 ends")) << "the last goes at once";
}

}  // namespace
}  // namespace weft::nccl
