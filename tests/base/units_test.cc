#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace weft {
namespace {

TEST(Bytes, Arithmetic) {
  Bytes bytes = KiB(3) + Bytes(5) - KiB(1);
  EXPECT_EQ(bytes, Bytes(2053));
  EXPECT_EQ(MiB(2) * 3, Bytes(6'291'456));
  EXPECT_EQ(GiB(1) / 4, MiB(256));
  EXPECT_EQ(KiB(3) / KiB(2), 1.5);
  EXPECT_LT(KiB(1), MiB(1));
  bytes -= Bytes(2053);
  bytes += Bytes(1);
  EXPECT_EQ(bytes.count(), 1);
}

TEST(Bandwidth, TimesTimeIsBytesAndBack) {
  Bandwidth bandwidth = Bandwidth::GigabitsPerSecond(8);
  EXPECT_EQ(bandwidth * absl::Milliseconds(2), Bytes(2'000'000));
  EXPECT_EQ(Bytes(2'000'000) / bandwidth, absl::Milliseconds(2));
  EXPECT_EQ(Bytes(2'000'000) / absl::Milliseconds(2), bandwidth);
  EXPECT_EQ(bandwidth / Bandwidth::GigabitsPerSecond(2), 4);
  EXPECT_EQ((bandwidth * 0.5).gigabits_per_second(), 4);
}

TEST(Bandwidth, ExtremesSaturate) {
  Bandwidth bandwidth = Bandwidth::GigabitsPerSecond(8);
  EXPECT_EQ((bandwidth * absl::InfiniteDuration()).count(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((bandwidth * -absl::InfiniteDuration()).count(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Bandwidth() * absl::InfiniteDuration(), Bytes(0));
  EXPECT_EQ(Bytes(1) / Bandwidth(), absl::InfiniteDuration());
}

TEST(ParseBytes, UnderstandsEveryUnit) {
  struct Case {
    const char* text;
    int64_t count;
  };
  for (const Case& c :
       {Case{"0", 0}, Case{"512", 512}, Case{"512B", 512}, Case{"7 bytes", 7},
        Case{"64KiB", 65'536}, Case{"64k", 65'536}, Case{"64 kib", 65'536}, Case{"1KB", 1000},
        Case{"1MB", 1'000'000}, Case{"1M", 1'048'576}, Case{"1.5MiB", 1'572'864},
        Case{"2GiB", 2'147'483'648}, Case{"1GB", 1'000'000'000}, Case{"1TiB", 1'099'511'627'776},
        Case{"1TB", 1'000'000'000'000}, Case{" 3 KiB ", 3072},
        Case{"9007199254740993", 9'007'199'254'740'993}}) {
    absl::StatusOr<Bytes> bytes = ParseBytes(c.text);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(bytes->count(), c.count) << c.text;
  }
}

TEST(ParseBytes, RefusesTheRestWithAnExample) {
  for (const char* text : {"", "KiB", "-1", "-1KiB", "1 KeB", "1e3", "1..5KiB", "64KiBs", "0x10",
                           "99999999TiB", "nan", "inf"}) {
    absl::StatusOr<Bytes> bytes = ParseBytes(text);
    EXPECT_TRUE(absl::IsInvalidArgument(bytes.status())) << text;
  }
  EXPECT_EQ(ParseBytes("64KeB").status().message(),
            "\"64KeB\" is not a size; write a number with B, KiB, MiB, GiB, KB, MB or GB, as in "
            "64KiB");
}

TEST(ParseBandwidth, TellsBitsFromBytes) {
  struct Case {
    const char* text;
    double gigabits;
  };
  for (const Case& c :
       {Case{"100Gbps", 100}, Case{"25gbit", 25}, Case{"500 Mbps", 0.5}, Case{"1Tbps", 1000},
        Case{"12.5GB/s", 100}, Case{"100Gb/s", 100}, Case{"125MB/s", 1}, Case{"125000 kB/s", 1}}) {
    absl::StatusOr<Bandwidth> bandwidth = ParseBandwidth(c.text);
    ASSERT_TRUE(bandwidth.ok()) << bandwidth.status();
    EXPECT_DOUBLE_EQ(bandwidth->gigabits_per_second(), c.gigabits) << c.text;
  }
  for (const char* text : {"", "100", "100GB", "-1Gbps", "fast", "inf Gbps"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBandwidth(text).status())) << text;
  }
}

TEST(Text, IsTheLargestUnitWithAtMostTwoDecimals) {
  EXPECT_EQ(ToString(Bytes(0)), "0 B");
  EXPECT_EQ(ToString(Bytes(17)), "17 B");
  EXPECT_EQ(ToString(KiB(64)), "64 KiB");
  EXPECT_EQ(ToString(Bytes(1'572'864)), "1.50 MiB");
  EXPECT_EQ(ToString(Bytes(-2048)), "-2 KiB");
  EXPECT_EQ(ToString(GiB(1024) * 2048), "2048 TiB");
  EXPECT_EQ(ToString(Bandwidth::GigabitsPerSecond(100)), "100 Gbps");
  EXPECT_EQ(ToString(Bandwidth::GigabitsPerSecond(1.25)), "1.25 Gbps");
}

}  // namespace
}  // namespace weft
