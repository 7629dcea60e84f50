#include "net/cc/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "net/cc/pacer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

const PathFacts kFacts{.base_rtt = absl::Microseconds(10),
                       .bandwidth = Bandwidth::GigabitsPerSecond(100),
                       .packet = Bytes(4160)};

TEST(ControllerRegistryTest, EveryControllerIsMadeByItsName) {
  for (ControllerKind kind : AllControllers()) {
    auto spec = ParseController(ToString(kind));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(ToString(*spec), ToString(kind));
    auto controller = MakeController(*spec, kFacts);
    EXPECT_GE(controller->window(), kFacts.packet) << ToString(kind);
    if (kind != ControllerKind::kCredit) {
      EXPECT_EQ(controller->name(), ToString(kind));
    }
    EXPECT_FALSE(ParametersOf(kind).empty());
  }
}

TEST(ControllerRegistryTest, ParametersReachTheController) {
  auto spec = ParseController("fixed:window=3");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(MakeController(*spec, kFacts)->window(), Bytes(3 * 125'000));
  EXPECT_EQ(ToString(*spec), "fixed:window=3");
}

TEST(ControllerRegistryTest, AFileOfTheTunerIsReadAndNamedWhereItIsWrong) {
  std::string path = testing::TempDir() + "/controller.txt";
  auto read = [&](const std::string& content) {
    std::ofstream(path) << content;
    return ReadController("@" + path);
  };
  EXPECT_EQ(ToString(*read("swift:beta=0.6,hop=0.1\n")), "swift:beta=0.6,hop=0.1");
  EXPECT_THAT(read("swift:bta=1\n").status().message(), HasSubstr(path + ":1"));
  EXPECT_THAT(read("").status().message(), HasSubstr("no controller in the file '" + path));
  EXPECT_THAT(ReadController("@/nowhere").status().message(), HasSubstr("'/nowhere'"));
  EXPECT_EQ(ToString(*ReadController("nscc")), "nscc");
}

TEST(ControllerRegistryTest, ErrorsNameWhatIsKnown) {
  EXPECT_THAT(ParseController("bbr").status().message(),
              HasSubstr("there are fixed, dcqcn, swift"));
  EXPECT_THAT(ParseController("swift:bta=1").status().message(), HasSubstr("it has ai, beta"));
  EXPECT_THAT(ParseController("swift:beta=2").status().message(), HasSubstr("must be 0.01 to 1"));
  EXPECT_THAT(ParseController("swift:beta").status().message(), HasSubstr("as in beta=0.8"));
}

TEST(PacerTest, KeepsToTheRateAndCatchesUpByABurstAtMost) {
  const Bandwidth rate = Bandwidth::BytesPerSecond(1e9);
  Pacer pacer(absl::Microseconds(5));
  absl::Time now = absl::UnixEpoch();
  pacer.OnSent(now, Bytes(10'000), rate);
  EXPECT_EQ(pacer.next(), now + absl::Microseconds(5));  // 10 us, less the burst
  now += absl::Milliseconds(1);
  ASSERT_TRUE(pacer.MaySend(now));
  pacer.OnSent(now, Bytes(10'000), rate);
  EXPECT_EQ(pacer.next(), now + absl::Microseconds(5)) << "a millisecond of idling is not saved up";
  pacer.OnRate(now, Bytes(1'000), rate);
  EXPECT_EQ(pacer.next(), now + absl::Microseconds(1));
}

TEST(PacerTest, NoRateMeansNoPacing) {
  Pacer pacer;
  pacer.OnSent(absl::UnixEpoch(), Bytes(1'000'000'000), Bandwidth());
  EXPECT_TRUE(pacer.MaySend(absl::UnixEpoch()));
}

}  // namespace
}  // namespace weft::net
