// What GraphsBy calls of a table, in which order, and what it gives back when a call fails. The
// table is scripted: nothing is captured.
#include "trainer/device/graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;

// What the table was asked for, and the call that fails.
struct Script {
  std::vector<std::string> calls;
  std::string fails;
  std::string error;
  int pools = 0, captures = 0, graphs = 0;  // made and not given back
};
Script script;

int Call(const std::string& name) {
  script.calls.push_back(name);
  if (name != script.fails) return 0;
  script.error = absl::StrCat(name, ": scripted");
  return 1;
}

constexpr WeftGraphTable kTable = {
    .version = kWeftGraphVersion,
    .size = sizeof(WeftGraphTable),
    .libtorch = "",
    .LastError = [] { return script.error.c_str(); },
    .PoolBegin =
        [](int, uint64_t pool, WeftStream*) {
          EXPECT_EQ(pool, 7U);
          const int failed = Call("PoolBegin");
          if (failed == 0) ++script.pools;
          return failed;
        },
    .PoolEnd = [](int, uint64_t) { return Call("PoolEnd"); },
    .PoolRelease =
        [](int, uint64_t) {
          --script.pools;
          return Call("PoolRelease");
        },
    .CaptureBegin = [](WeftStream*) { return Call("CaptureBegin"); },
    .CaptureEnd =
        [](WeftStream*, WeftCapture** capture) {
          const int failed = Call("CaptureEnd");
          *capture = failed == 0 ? reinterpret_cast<WeftCapture*>(&script) : nullptr;
          if (failed == 0) ++script.captures;
          return failed;
        },
    .CaptureDestroy =
        [](WeftCapture*) {
          --script.captures;
          return Call("CaptureDestroy");
        },
    .Instantiate =
        [](WeftCapture*, WeftStream*, WeftGraph** graph) {
          const int failed = Call("Instantiate");
          *graph = failed == 0 ? reinterpret_cast<WeftGraph*>(&script) : nullptr;
          if (failed == 0) ++script.graphs;
          return failed;
        },
    .Launch = [](WeftGraph*, WeftStream*) { return Call("Launch"); },
    .Destroy =
        [](WeftGraph*) {
          --script.graphs;
          return Call("Destroy");
        },
};

class GraphsTest : public ::testing::Test {
 protected:
  void SetUp() override { script = {}; }
  static absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      const absl::Status& body = absl::OkStatus()) {
    return GraphsBy(&kTable, at::kCPU)->Capture(7, [&] {
      script.calls.emplace_back("body");
      return body;
    });
  }
  static void ExpectNothingLeft() {
    EXPECT_EQ(script.pools, 0);
    EXPECT_EQ(script.captures, 0);
    EXPECT_EQ(script.graphs, 0);
  }
};

TEST_F(GraphsTest, ACaptureIsMadeInItsPoolAndGoesWithTheGraph) {
  {
    const auto graph = Capture();
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_THAT(script.calls, ElementsAre("PoolBegin", "CaptureBegin", "body", "CaptureEnd",
                                          "Instantiate", "CaptureDestroy", "PoolEnd"));
    script.calls.clear();
    EXPECT_TRUE((*graph)->Launch().ok());
    EXPECT_TRUE((*graph)->Launch().ok());
    EXPECT_THAT(script.calls, ElementsAre("Launch", "Launch"));
    EXPECT_EQ(script.pools, 1);
  }
  ExpectNothingLeft();
}

TEST_F(GraphsTest, ACallThatFailsIsTheErrorAndLeavesNothing) {
  for (const char* call : {"PoolBegin", "CaptureBegin", "CaptureEnd", "Instantiate", "PoolEnd"}) {
    script = {};
    script.fails = call;
    const auto graph = Capture();
    ASSERT_FALSE(graph.ok()) << call;
    EXPECT_EQ(graph.status().message(), absl::StrCat(call, ": scripted"));
    ExpectNothingLeft();
    const auto ended = std::count(script.calls.begin(), script.calls.end(), "PoolEnd");
    EXPECT_EQ(ended, script.fails == "PoolBegin" ? 0 : 1) << call;
  }
}

// The stream's capture is ended, and the reason is the pass's, not that the capture failed.
TEST_F(GraphsTest, ABodyThatFailsEndsTheCapture) {
  script.fails = "CaptureEnd";
  const auto graph = Capture(absl::InternalError("a pass waited for the stream"));
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().message(), "a pass waited for the stream");
  EXPECT_THAT(script.calls, ElementsAre("PoolBegin", "CaptureBegin", "body", "CaptureEnd",
                                        "PoolEnd", "PoolRelease"));
  ExpectNothingLeft();
}

TEST_F(GraphsTest, ALaunchThatFailsSaysWhy) {
  const auto graph = Capture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  script.fails = "Launch";
  EXPECT_EQ((*graph)->Launch().message(), "Launch: scripted");
}

}  // namespace
}  // namespace weft::train
