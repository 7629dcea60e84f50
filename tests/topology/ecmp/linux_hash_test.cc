#include "topology/ecmp/linux_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

// The tuples of which a Linux 6.18 router was asked (`ip route get ... iif`), over five next hops.
FiveTuple Asked(int i, bool v6, uint8_t protocol) {
  FiveTuple tuple;
  if (v6) {
    tuple.source = *IpAddress::Parse(absl::StrFormat("fd09::%x:%x", i + 1, i * 7 + 1));
    tuple.target = *IpAddress::Parse(absl::StrFormat("fd01::%x:%x", i * 251 % 65536, i + 3));
  } else {
    tuple.source = *IpAddress::Parse(absl::StrFormat("10.9.%d.%d", 1 + i % 7, 1 + i % 200));
    tuple.target = *IpAddress::Parse(absl::StrFormat("10.1.%d.%d", i * 13 % 256, i * 29 % 256));
  }
  tuple.source_port = static_cast<uint16_t>(49152 + i * 37);
  tuple.target_port = static_cast<uint16_t>(i % 2 == 1 ? 4791 : 1024 + i * 911 % 60000);
  tuple.protocol = protocol;
  return tuple;
}

struct Router {
  LinuxHashOptions options;
  bool v6;
  uint8_t protocol;
  absl::string_view answers;
};

// With `iif` the kernel answers for IPv4 as it forwards, for IPv6 without the mix for forwarding.
const Router kRouters[] = {
    {{3, 0x37, 12345, true},
     false,
     kProtocolTcp,
     "1422040404300434230340332344022031234122124330424243101014333300"},
    {{3, 0x37, 0xfffffff0, true},
     false,
     kProtocolUdp,
     "1334141323332431143234040001420320212242000200002032400012134211"},
    {{1, 0x37, 12345, true},
     false,
     kProtocolTcp,
     "1133420404430120402241443422001302330103201244233330232234124012"},
    {{0, 0x37, 12345, true},
     false,
     kProtocolTcp,
     "2130100230204123441414013233410401300332041444000104023322340140"},
    {{1, 0x37, 12345, true},
     true,
     kProtocolUdp,
     "3240022213000410212310334421323341144314334221142222414401243344"},
    {{3, 0x37, 12345, false},
     true,
     kProtocolUdp,
     "3240022213000410212310334421323341144314334221142222414401243344"},
    {{0, 0x37, 12345, true},
     true,
     kProtocolTcp,
     "0124302411130004100234123021421400220304220433014004440120432420"},
};

TEST(LinuxHash, ChoosesWhatTheKernelChose) {
  for (const Router& router : kRouters) {
    LinuxHash hash = *LinuxHash::Create(router.options);
    std::string chosen;
    for (int i = 0; i < 64; ++i) {
      chosen += absl::StrFormat(
          "%d", SelectByThreshold(hash.Hash(Asked(i, router.v6, router.protocol)), 5));
    }
    EXPECT_EQ(chosen, router.answers) << "policy " << router.options.policy << " v6 " << router.v6;
  }
}

TEST(LinuxHash, ChoosesByWeightWhatTheKernelChose) {
  LinuxHash hash = *LinuxHash::Create({3, 0x37, 12345, true});
  WeightedThresholds thresholds({1, 2, 3, 4, 5});
  std::string chosen;
  for (int i = 0; i < 64; ++i) {
    FiveTuple tuple = Asked(i, false, kProtocolUdp);
    tuple.target.bytes[1] = 3;
    chosen += absl::StrFormat("%d", thresholds.Select(hash.Hash(tuple)));
  }
  EXPECT_EQ(chosen, "0234444032442442343424242323342344222444123144303144204243031330");
}

TEST(LinuxHash, IsTheSameForBothDirections) {
  LinuxHash hash = *LinuxHash::Create({3, 0x37, 99, true});
  for (bool v6 : {false, true}) {
    for (int i = 0; i < 20; ++i) {
      FiveTuple there = Asked(i, v6, kProtocolTcp), back = there;
      std::swap(back.source, back.target);
      std::swap(back.source_port, back.target_port);
      EXPECT_EQ(hash.Hash(there), hash.Hash(back));
    }
  }
}

TEST(LinuxHash, LooksOnlyAtTheFieldsOfPolicy3) {
  LinuxHash hash = *LinuxHash::Create({3, kHashSourceAddress | kHashTargetAddress, 5, true});
  FiveTuple a = Asked(1, false, kProtocolTcp), b = a;
  b.source_port ^= 1;
  b.target_port ^= 1;
  b.protocol = kProtocolUdp;
  EXPECT_EQ(hash.Hash(a), hash.Hash(b));
  b.target.bytes[3] ^= 1;
  EXPECT_NE(hash.Hash(a), hash.Hash(b));
}

TEST(LinuxHash, RefusesWhatCannotBePredicted) {
  EXPECT_THAT(std::string(LinuxHash::Create({3, 0x37, 0, true}).status().message()),
              HasSubstr("fib_multipath_hash_seed"));
  EXPECT_THAT(std::string(LinuxHash::Create({2, 0x37, 1, true}).status().message()),
              HasSubstr("policy 2"));
  EXPECT_THAT(std::string(LinuxHash::Create({3, 0x100, 1, true}).status().message()),
              HasSubstr("0x100"));
}

TEST(SelectByThreshold, HasTheKernelsBounds) {
  for (size_t count = 1; count <= 70; ++count) {
    WeightedThresholds reference(std::vector<uint32_t>(count, 1));
    for (uint64_t share = 0; share <= count; ++share) {
      auto edge = static_cast<int64_t>((share << 31) / count);
      for (int64_t hash = edge - 2; hash <= edge + 2; ++hash) {
        if (hash < 0 || hash > 0x7fffffff) continue;
        auto value = static_cast<uint32_t>(hash);
        ASSERT_EQ(SelectByThreshold(value, count), reference.Select(value)) << count << " " << hash;
      }
    }
  }
}

// DIV_ROUND_CLOSEST_ULL(weight << 31, total) - 1, worked out by hand for three: 2^31 / 3 is
// 715,827,882.67 and twice that 1,431,655,765.33.
TEST(SelectByThreshold, RoundsBoundsToTheNearest) {
  EXPECT_EQ(SelectByThreshold(715'827'882, 3), 0u);
  EXPECT_EQ(SelectByThreshold(715'827'883, 3), 1u);
  EXPECT_EQ(SelectByThreshold(1'431'655'764, 3), 1u);
  EXPECT_EQ(SelectByThreshold(1'431'655'765, 3), 2u);
}

}  // namespace
}  // namespace weft::topology
