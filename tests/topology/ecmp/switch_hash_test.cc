#include "topology/ecmp/switch_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_format.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

FiveTuple RoceFlow(uint32_t i) {
  FiveTuple tuple;
  tuple.source = IpAddress::V4(0x0A000000 + i * 16);
  tuple.target = IpAddress::V4(0x0A010000 + i * 48);
  tuple.source_port = static_cast<uint16_t>(0xC000 + i * 7);
  tuple.target_port = kRoceTargetPort;
  return tuple;
}

SwitchHash Make(const SwitchHashOptions& options) { return *SwitchHash::Create(options); }

// Bit by bit, most significant first; `reflect` as in the catalogue of CRCs.
uint32_t SlowCrc(const std::vector<uint8_t>& data, int width, uint32_t polynomial, uint32_t state,
                 bool reflect, uint32_t last_xor) {
  auto reverse = [](uint32_t value, int bits) {
    uint32_t out = 0;
    for (int i = 0; i < bits; ++i) out |= (value >> i & 1) << (bits - 1 - i);
    return out;
  };
  uint32_t mask = width == 32 ? ~0u : (1u << width) - 1;
  for (uint8_t byte : data) {
    uint32_t in = reflect ? reverse(byte, 8) : byte;
    for (int bit = 7; bit >= 0; --bit) {
      bool feedback = (state >> (width - 1) & 1) != (in >> bit & 1);
      state = (state << 1 ^ (feedback ? polynomial : 0)) & mask;
    }
  }
  return ((reflect ? reverse(state, width) : state) ^ last_xor) & mask;
}

TEST(SwitchHash, CrcsAreTheCataloguedOnes) {
  std::vector<uint8_t> check = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  ASSERT_EQ(SlowCrc(check, 16, 0x1021, 0, false, 0), 0x31C3u);  // CRC-16/XMODEM
  ASSERT_EQ(SlowCrc(check, 16, 0x8005, 0, true, 0), 0xBB3Du);   // CRC-16/ARC
  ASSERT_EQ(SlowCrc(check, 32, 0x04C11DB7, ~0u, true, ~0u), 0xCBF43926u);
  ASSERT_EQ(SlowCrc(check, 32, 0x1EDC6F41, ~0u, true, ~0u), 0xE3069283u);
  for (uint32_t i = 0; i < 50; ++i) {
    FiveTuple tuple = RoceFlow(i);
    std::vector<uint8_t> wire(tuple.source.bytes.begin(), tuple.source.bytes.begin() + 4);
    wire.insert(wire.end(), tuple.target.bytes.begin(), tuple.target.bytes.begin() + 4);
    for (int value : {int{tuple.source_port}, int{tuple.target_port}, int{tuple.protocol}}) {
      wire.push_back(static_cast<uint8_t>(value >> 8));
      wire.push_back(static_cast<uint8_t>(value));
    }
    EXPECT_EQ(Make({.function = HashFunction::kCrc16Ccitt}).Hash(tuple),
              SlowCrc(wire, 16, 0x1021, 0, false, 0));
    EXPECT_EQ(Make({.function = HashFunction::kCrc16Arc}).Hash(tuple),
              SlowCrc(wire, 16, 0x8005, 0, true, 0));
    EXPECT_EQ(Make({.function = HashFunction::kCrc32}).Hash(tuple),
              SlowCrc(wire, 32, 0x04C11DB7, ~0u, true, ~0u));
    EXPECT_EQ(Make({.function = HashFunction::kCrc32c}).Hash(tuple),
              SlowCrc(wire, 32, 0x1EDC6F41, ~0u, true, ~0u));
  }
}

TEST(SwitchHash, AnotherSeedOfALinearHashOnlyAddsAConstant) {
  for (HashFunction function :
       {HashFunction::kCrc16Ccitt, HashFunction::kCrc16Arc, HashFunction::kCrc32,
        HashFunction::kCrc32c, HashFunction::kXor16, HashFunction::kMix}) {
    SwitchHash one = Make({.function = function, .seed = 1}),
               two = Make({.function = function, .seed = 77});
    std::set<uint32_t> differences;
    for (uint32_t i = 0; i < 100; ++i) {
      differences.insert(one.Hash(RoceFlow(i)) ^ two.Hash(RoceFlow(i)));
    }
    EXPECT_EQ(differences.size() == 1, one.linear()) << ToString(function);
  }
}

// How many members of the next tier the flows take that a leaf sends to its member 0.
size_t SecondTierUse(const SwitchHash& leaf, const SwitchHash& spine, size_t members) {
  std::set<size_t> used;
  for (uint32_t i = 0; i < 4000; ++i) {
    FiveTuple tuple = RoceFlow(i);
    if (leaf.Select(tuple, members) == 0) used.insert(spine.Select(tuple, members));
  }
  return used.size();
}

TEST(SwitchHash, TiersPolariseWithOneSeedAndWithAnother) {
  SwitchHash leaf = Make({.function = HashFunction::kCrc32, .seed = 1});
  EXPECT_EQ(SecondTierUse(leaf, leaf, 8), 1u);
  EXPECT_EQ(SecondTierUse(leaf, Make({.function = HashFunction::kCrc32, .seed = 12345}), 8), 1u);
  SwitchHash linux_leaf = Make({HashFunction::kLinux, HashSelect::kThreshold, 5});
  EXPECT_EQ(SecondTierUse(linux_leaf, linux_leaf, 8), 1u);
  EXPECT_EQ(SecondTierUse(linux_leaf, Make({HashFunction::kLinux, HashSelect::kThreshold, 6}), 8),
            8u);  // SipHash is not linear: a seed is enough
}

// There are three functions, and four tiers of nodes that choose among links.
TEST(PerTierHash, HostsAndCoresHaveOneFunctionAndChooseIndependently) {
  SwitchHash host = Make(PerTierHash(0, 9)), core = Make(PerTierHash(3, 9));
  ASSERT_EQ(host.options().function, core.options().function);
  std::map<std::pair<size_t, size_t>, int> both;
  for (uint32_t i = 0; i < 8000; ++i) {
    ++both[{host.Select(RoceFlow(i), 4), core.Select(RoceFlow(i), 4)}];
  }
  EXPECT_EQ(both.size(), 16u);
  for (const auto& [choices, flows] : both) {
    EXPECT_NEAR(flows, 500, 150) << choices.first << " and " << choices.second;
  }
}

TEST(PerTierHash, DoesNotPolarise) {
  for (int tier = 0; tier < 3; ++tier) {
    SwitchHash near = Make(PerTierHash(tier, 9)), far = Make(PerTierHash(tier + 1, 9));
    EXPECT_EQ(SecondTierUse(near, far, 8), 8u) << tier;
    EXPECT_EQ(SecondTierUse(near, far, 16), 16u) << tier;
  }
}

TEST(SwitchHash, SpreadsEvenlyOverAnyNumberOfMembers) {
  for (HashFunction function :
       {HashFunction::kCrc16Ccitt, HashFunction::kCrc32, HashFunction::kMix}) {
    for (HashSelect select :
         {HashSelect::kModulo, HashSelect::kThreshold, HashSelect::kResilient}) {
      SwitchHash hash = Make({.function = function, .select = select, .buckets = 4096});
      for (size_t members : {1, 3, 8, 13}) {
        std::vector<int> count(members);
        constexpr int kFlows = 20000;
        for (uint32_t i = 0; i < kFlows; ++i) ++count[hash.Select(RoceFlow(i), members)];
        for (int share : count) {
          EXPECT_NEAR(share, kFlows / static_cast<double>(members), kFlows * 0.05)
              << ToString(function) << " over " << members;
        }
      }
    }
  }
}

// A Linux 6.18 group of type resilient with 128 buckets and five members, before and after the
// second was lost, as `ip nexthop bucket show` printed it.
TEST(ResilientOwner, IsWhatTheKernelsTableSays) {
  auto table = [](std::vector<bool> members) {
    std::vector<char> alive(members.begin(), members.end());
    std::string out;
    for (uint32_t bucket = 0; bucket < 128; ++bucket) {
      out += absl::StrFormat(
          "%d",
          ResilientOwner(bucket, 128,
                         absl::MakeConstSpan(reinterpret_cast<bool*>(alive.data()), alive.size())));
    }
    return out;
  };
  auto run = [](char owner, size_t count) { return std::string(count, owner); };
  EXPECT_EQ(table({true, true, true, true, true}),
            run('4', 26) + run('3', 25) + run('2', 26) + run('1', 25) + run('0', 26));
  EXPECT_EQ(table({true, false, true, true, true}), run('4', 26) + run('3', 25) + run('2', 26) +
                                                        run('4', 6) + run('3', 7) + run('2', 6) +
                                                        run('0', 32));
}

TEST(SwitchHash, ResilientMovesOnlyFlowsOfTheFailedMember) {
  SwitchHash resilient = Make({.select = HashSelect::kResilient, .buckets = 256});
  SwitchHash modulo = Make({.select = HashSelect::kModulo});
  constexpr bool kAlive[] = {true, true, false, true, true, true, true, true};
  int moved = 0, moved_modulo = 0, failed = 0;
  std::map<size_t, int> heirs;
  for (uint32_t i = 0; i < 8000; ++i) {
    FiveTuple tuple = RoceFlow(i);
    size_t before = resilient.Select(tuple, 8), after = resilient.SelectAlive(tuple, kAlive);
    EXPECT_NE(after, 2u);
    failed += before == 2 ? 1 : 0;
    moved += before != after ? 1 : 0;
    if (before == 2) ++heirs[after];
    moved_modulo += modulo.Select(tuple, 8) != modulo.SelectAlive(tuple, kAlive) ? 1 : 0;
  }
  EXPECT_EQ(moved, failed);
  EXPECT_EQ(heirs.size(), 7u);
  EXPECT_GT(moved_modulo, 8000 / 2);  // modulo moves most of everything
}

TEST(SwitchHash, LeavesOutFieldsThatAreNotHashed) {
  SwitchHash hash = Make({.fields = kHashSourceAddress | kHashTargetAddress});
  FiveTuple a = RoceFlow(3), b = a;
  b.source_port ^= 0xFF;
  EXPECT_EQ(hash.Hash(a), hash.Hash(b));
}

TEST(SwitchHash, NamesOptionsThatAreWrong) {
  auto message = [](const SwitchHashOptions& options) {
    return std::string(SwitchHash::Create(options).status().message());
  };
  EXPECT_THAT(message({.function = HashFunction::kCrc16Arc, .offset = 16}), HasSubstr("0..15"));
  EXPECT_THAT(message({.buckets = 0}), HasSubstr("1..65536"));
  EXPECT_THAT(message({.fields = 0}), HasSubstr("0x3f"));
  EXPECT_THAT(message({.function = HashFunction::kLinux, .seed = 0}), HasSubstr("seed 0"));
  EXPECT_THAT(std::string(ParseHashFunction("crc64").status().message()), HasSubstr("crc32c"));
  EXPECT_EQ(*ParseHashFunction("xor16"), HashFunction::kXor16);
}

}  // namespace
}  // namespace weft::topology
