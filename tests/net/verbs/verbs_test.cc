// What the verbs transport decides without a device: choices, settings, terms, records, words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "net/verbs/choice.h"
#include "net/verbs/entry.h"
#include "net/verbs/explain.h"
#include "net/verbs/lane.h"
#include "net/verbs/options.h"
#include "net/verbs/record.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

Gid Ipv4(uint8_t last) {
  Gid gid{};
  gid[10] = gid[11] = 0xFF;
  gid[12] = 10, gid[15] = last;
  return gid;
}
Gid Ipv6(uint8_t first, uint8_t last) {
  Gid gid{};
  gid[0] = first, gid[1] = first == 0xFE ? 0x80 : 0, gid[15] = last;
  return gid;
}

// ---- GIDs, as NCCL chooses

TEST(GidChoice, AnIpv4MappedRoceV2GidIsPreferredWhereverItStands) {
  const std::vector<NicGid> gids = {{0, Ipv6(0xFE, 1), GidKind::kRoceV1},
                                    {1, Ipv6(0xFE, 1), GidKind::kRoceV2},
                                    {2, Ipv6(0xFD, 1), GidKind::kRoceV2},
                                    {4, Ipv4(1), GidKind::kRoceV1},
                                    {7, Ipv4(1), GidKind::kRoceV2}};
  auto choice = ChooseGid(gids, true, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->gid.index, 7);
  EXPECT_EQ(choice->why, "RoCE v2, IPv4");
  VerbsOptions options;
  options.ipv6 = true;
  EXPECT_EQ(ChooseGid(gids, true, options)->gid.index, 2);
  options = {};
  options.roce_version = 1;
  EXPECT_EQ(ChooseGid(gids, true, options)->gid.index, 4);
  options = {};
  options.gid_index = 1;
  EXPECT_EQ(ChooseGid(gids, true, options)->gid.index, 1);
}

TEST(GidChoice, LinkLocalIsTakenOnlyWhereThereIsNothingElse) {
  auto choice = ChooseGid({{1, Ipv6(0xFE, 9), GidKind::kRoceV2}}, true, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->gid.index, 1);
}

TEST(GidChoice, WhatIsMissingIsSaidWithTheTable) {
  VerbsOptions options;
  options.gid_index = 5;
  auto missing = ChooseGid({{3, Ipv4(7), GidKind::kRoceV2}}, true, options);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("index 5"));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("::ffff:10.0.0.7"));
  auto none = ChooseGid({{0, Gid{}, GidKind::kRoceV2}}, true, {});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no usable GID"));
}

TEST(GidChoice, InfinibandTakesIndexZero) {
  EXPECT_EQ(ChooseGid({{0, Ipv6(0xFE, 1), GidKind::kInfiniband}}, false, {})->gid.index, 0);
}

TEST(GidChoice, OnlyGidsOfTheRangeAreTakenAndNoOtherInstead) {
  const std::vector<NicGid> gids = {{2, Ipv6(0xFD, 1), GidKind::kRoceV2},
                                    {3, Ipv4(1), GidKind::kRoceV2},
                                    {5, Ipv4(130), GidKind::kRoceV2}};
  VerbsOptions options;
  const auto in = [&](const char* range) {
    options.address_range = *ParseGidRange(range);
    return ChooseGid(gids, true, options);
  };
  EXPECT_EQ(in("10.0.0.128/25")->gid.index, 5);
  EXPECT_EQ(in("10.0.0.0/8")->gid.index, 3);
  EXPECT_EQ(in("fd00::/8")->gid.index, 2);
  EXPECT_EQ(in("::/0")->gid.index, 3);
  auto none = in("192.168.0.0/16");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no GID within 192.168.0.0/16"));
  options.gid_index = 3;
  EXPECT_EQ(in("fd00::/8")->gid.index, 3) << "an index goes before a range";
  for (const char* wrong : {"10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "10.0.0.0/x"}) {
    EXPECT_THAT(std::string(ParseGidRange(wrong).status().message()), HasSubstr(wrong));
  }
}

TEST(DeviceFilter, ReadsAsNcclIbHca) {
  EXPECT_TRUE(DeviceIsWanted("", "mlx5_0", 1));
  EXPECT_TRUE(DeviceIsWanted("bnxt,mlx5", "mlx5_12", 1));
  EXPECT_FALSE(DeviceIsWanted("bnxt", "mlx5_0", 1));
  EXPECT_TRUE(DeviceIsWanted("=mlx5_1", "mlx5_1", 1));
  EXPECT_FALSE(DeviceIsWanted("=mlx5_1", "mlx5_12", 1));
  EXPECT_TRUE(DeviceIsWanted("mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(DeviceIsWanted("mlx5_0:2", "mlx5_0", 1));
  EXPECT_FALSE(DeviceIsWanted("^mlx5_3", "mlx5_3", 1));
  EXPECT_TRUE(DeviceIsWanted("^mlx5_3", "mlx5_2", 1));
  EXPECT_TRUE(DeviceIsWanted("^=mlx5_3", "mlx5_31", 1));
}

// ---- Settings

const char* NoEnvironment(const char*) { return nullptr; }

TEST(VerbsSettings, NcclsCountWhereOursAreNotSet) {
  const std::map<std::string, std::string> nccl = {{"NCCL_IB_HCA", "=mlx5_2"},
                                                   {"NCCL_IB_TC", "106"},
                                                   {"NCCL_IB_TIMEOUT", "20"},
                                                   {"NCCL_IB_RETRY_CNT", "5"},
                                                   {"NCCL_IB_GID_INDEX", "-1"},
                                                   {"NCCL_IB_QPS_PER_CONNECTION", "4"},
                                                   {"NCCL_IB_SL", "3"},
                                                   {"NCCL_IB_ADDR_FAMILY", "AF_INET6"},
                                                   {"NCCL_IB_FIFO_TC", "184"},
                                                   {"NCCL_IB_ADDR_RANGE", "fd00::/8"},
                                                   {"NCCL_IB_PCI_RELAXED_ORDERING", "0"},
                                                   {"NCCL_GDR_FLUSH_DISABLE", "1"}};
  const Environment get = [&](const char* name) -> const char* {
    auto found = nccl.find(name);
    return found == nccl.end() ? nullptr : found->second.c_str();
  };
  Settings settings{LibrarySettings()};
  ASSERT_TRUE(settings.Set("verbs.timeout", "14", "test").ok());
  auto options = ReadVerbsOptions(settings, get);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->devices, "=mlx5_2");
  EXPECT_EQ(options->devices_origin, "NCCL_IB_HCA");
  EXPECT_EQ(options->traffic_class, 106);
  EXPECT_EQ(options->service_level, 3);
  EXPECT_EQ(options->timeout, 14) << "ours goes before NCCL's";
  EXPECT_EQ(options->retry_count, 5);
  EXPECT_EQ(options->gid_index, -1);
  EXPECT_EQ(options->queue_pairs, 4);
  EXPECT_TRUE(options->ipv6);
  EXPECT_EQ(options->clear_to_send_traffic_class, 184);
  EXPECT_EQ(options->address_range->text, "fd00::/8");
  EXPECT_FALSE(options->relaxed_ordering);
  EXPECT_FALSE(options->flush);
}

TEST(VerbsSettings, ABadValueOfNcclsIsNamedWithItsRange) {
  const struct {
    const char *name, *value, *right;
  } all[] = {{"NCCL_IB_TIMEOUT", "99", "1..31"},
             {"NCCL_IB_FIFO_TC", "256", "0..255"},
             {"NCCL_IB_ADDR_FAMILY", "inet", "AF_INET and AF_INET6"},
             {"NCCL_IB_ADDR_RANGE", "10.0.0.0", "10.1.0.0/16"},
             {"NCCL_IB_PCI_RELAXED_ORDERING", "yes", "0..2"},
             {"NCCL_GDR_FLUSH_DISABLE", "2", "0..1"}};
  for (const auto& one : all) {
    const Environment get = [&](const char* name) -> const char* {
      return std::string(name) == one.name ? one.value : nullptr;
    };
    auto options = ReadVerbsOptions(Settings{LibrarySettings()}, get);
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << one.name;
    EXPECT_THAT(std::string(options.status().message()),
                testing::AllOf(HasSubstr(one.name), HasSubstr(one.value), HasSubstr(one.right)));
  }
}

TEST(VerbsSettings, PiecesAreWholeLinesOf128Bytes) {
  Settings settings{LibrarySettings()};
  ASSERT_TRUE(settings.Set("verbs.piece_min", "65700", "test").ok());
  ASSERT_TRUE(settings.Set("verbs.piece_max", "4KiB", "test").ok());
  auto options = ReadVerbsOptions(settings, NoEnvironment);
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->piece_min, 65664u);
  EXPECT_EQ(options->piece_max, options->piece_min) << "never below the least";
}

// ---- Terms and controls

TEST(VerbsTermsTest, WhatDiffersIsNamedWithBothValues) {
  VerbsTerms ours, theirs;
  ours.ethernet = theirs.ethernet = true;
  ours.device = "a mlx5_0", theirs.device = "b mlx5_0";
  EXPECT_TRUE(ours.Check(theirs).ok());
  theirs.version = 9;
  std::string text(ours.Check(theirs).message());
  EXPECT_THAT(text, HasSubstr(absl::StrCat("9 at b mlx5_0, ", kVerbsVersion, " at a mlx5_0")));
  theirs = ours;
  theirs.ethernet = false;
  text = std::string(ours.Check(theirs).message());
  EXPECT_THAT(text, HasSubstr("InfiniBand at "));
  EXPECT_THAT(text, HasSubstr("Ethernet at "));
  theirs = ours;
  theirs.ipv6 = true;
  EXPECT_THAT(std::string(ours.Check(theirs).message()), HasSubstr("IPv6"));
  theirs = ours;
  theirs.roce_version = 1;
  EXPECT_FALSE(ours.Check(theirs).ok());
  theirs = ours;
  theirs.ring_slots = 7;
  EXPECT_FALSE(ours.Check(theirs).ok());
}

TEST(VerbsTermsTest, SurviveTheWayAndNothingElseDoes) {
  VerbsTerms terms;
  terms.ethernet = true, terms.ipv6 = true, terms.roce_version = 1, terms.device = "host mlx5_0";
  auto back = VerbsTerms::Decode(terms.Encode());
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(terms.Check(*back).ok());
  EXPECT_EQ(back->device, "host mlx5_0");
  EXPECT_FALSE(VerbsTerms::Decode("").ok());
  EXPECT_FALSE(VerbsTerms::Decode(std::string(1000, 'x')).ok());
}

TEST(VerbsControl, WhatIsOutOfRangeIsNotBelieved) {
  Control good;
  good.kind = ControlKind::kOffer;
  std::string text;
  ASSERT_TRUE(DecodeControl(EncodeControl(good, "why"), &text).ok());
  EXPECT_EQ(text, "why");
  const auto bad = [&](auto change) {
    Control control = good;
    change(control);
    return !DecodeControl(EncodeControl(control, ""), &text).ok();
  };
  EXPECT_TRUE(bad([](Control& c) { c.magic = 1; }));
  EXPECT_TRUE(bad([](Control& c) { c.version = kVerbsVersion + 1; }));
  EXPECT_TRUE(bad([](Control& c) { c.kind = static_cast<ControlKind>(0); }));
  EXPECT_TRUE(bad([](Control& c) { c.kind = static_cast<ControlKind>(14); }));
  EXPECT_TRUE(bad([](Control& c) { c.eager_max = kEagerBytesMax + 1; }));
  EXPECT_TRUE(bad([](Control& c) { c.lane = kVerbsLanesMax; }));
  EXPECT_TRUE(bad([](Control& c) { c.lanes = kVerbsLanesMax + 1; }));
  EXPECT_TRUE(bad([](Control& c) { c.rail = kVerbsRailsMax; }));
  EXPECT_TRUE(bad([](Control& c) { c.rails = kVerbsRailsMax + 1; }));
  EXPECT_TRUE(bad([](Control& c) { c.queue_pair = 1u << 24; }));
  EXPECT_TRUE(bad([](Control& c) { c.psn = 1u << 24; }));
  EXPECT_FALSE(DecodeControl("short", &text).ok());
  EXPECT_FALSE(DecodeControl(std::string(5000, '\0'), &text).ok());
}

// ---- The record of arrivals

TEST(Record, HasWhatWasAddedInAnyOrder) {
  ArrivalRecord record;
  for (uint64_t number : {3, 1, 0}) record.Add(number);
  EXPECT_EQ(record.base, 2u);
  EXPECT_TRUE(record.Has(0) && record.Has(1) && record.Has(3));
  EXPECT_FALSE(record.Has(2) || record.Has(4));
  record.Add(2);
  EXPECT_EQ(record.base, 4u);
  EXPECT_FALSE(record.Has(4 + kRingSlots)) << "far ahead is not the same slot's past";
}

TEST(Record, GoesOnPastEveryMultipleOfTheRing) {
  ArrivalRecord record;
  for (uint64_t base = 0; base < 5 * kRingSlots; base += 2) {
    record.Add(base + 1);
    EXPECT_EQ(record.base, base);
    EXPECT_TRUE(record.Has(base + 1));
    record.Add(base);
    ASSERT_EQ(record.base, base + 2);
  }
}

// ---- Lanes

TEST(LaneAccounts, OneCompletionStandsForAllBeforeIt) {
  Lane lane;
  const absl::Time now = absl::UnixEpoch();
  for (uint64_t number = 0; number < 5; ++number) lane.NotePosted(2, number, 100, now);
  std::vector<uint64_t> done;
  lane.NoteCompleted(3, now, [&](uint64_t number) { done.push_back(number); });
  EXPECT_EQ(done, (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(lane.outstanding, 100u);
  EXPECT_EQ(lane.requests_used, 2u);
  lane.NoteCompleted(1, now, [&](uint64_t) { FAIL() << "again"; });
}

TEST(LaneAccounts, ReceivesAreUsedInOrderWhateverIsSaidOfThem) {
  Lane lane;
  lane.NoteReceived(0);
  lane.NoteReceived(4);  // 1 to 3 were lost or are late
  EXPECT_EQ(lane.receives_used, 5u);
  lane.NoteReceived(2);
  lane.NoteReceived(4);
  EXPECT_EQ(lane.receives_used, 5u);
  EXPECT_EQ(Distance31(0, RailQueuePair::kNumberMask), 1);
  EXPECT_EQ(Distance31(RailQueuePair::kNumberMask, 0), -1);
}

TEST(LaneAccounts, SpeedIsMeasuredWhileSomethingIsOnItsWay) {
  Lane lane;
  lane.rate = 1e9;
  absl::Time now = absl::UnixEpoch();
  uint32_t id = 0;
  for (int i = 0; i < 60; ++i) {
    lane.NotePosted(2, 0, 1 << 20, now);
    now += absl::Milliseconds(10);
    lane.NoteCompleted(id++, now, [](uint64_t) {});
    now += absl::Seconds(1);  // idle: not the lane's fault
  }
  EXPECT_NEAR(lane.rate, (1 << 20) / 0.010, 1e6);
}

// ---- Words

TEST(LaneAccounts, WhatMayBeOnItsWayFollowsTheDelay) {
  Lane lane;
  const absl::Time start = absl::UnixEpoch();
  const auto none = [](uint64_t) {};
  // Acknowledged at once: twice as much after a window's worth, up to a limit.
  for (uint32_t i = 0; i < 4; ++i) {
    lane.NotePosted(1, i, 64 << 10, start);
    lane.NoteCompleted(i, start + absl::Microseconds(50), none);
  }
  const uint64_t widened = Lane::kWindowFirst + (256 << 10);
  EXPECT_EQ(lane.window, widened);
  // Ten posted at one time and all late: narrowed once, by half at most.
  const absl::Time late = start + absl::Seconds(1);
  for (uint32_t i = 4; i < 14; ++i) lane.NotePosted(1, i, 64 << 10, start + absl::Milliseconds(1));
  lane.NoteCompleted(13, late, none);
  EXPECT_EQ(lane.window, widened / 2);
  // Never below what two pieces take.
  for (uint32_t i = 14; i < 30; ++i) {
    const absl::Time posted = late + absl::Seconds(i);
    lane.NotePosted(1, i, 64 << 10, posted);
    lane.NoteCompleted(i, posted + absl::Seconds(1), none);
  }
  EXPECT_EQ(lane.window, Lane::kWindowLeast);
}

TEST(LaneAccounts, AProbeProvesTheLaneAndIsNoEntry) {
  Lane lane;
  lane.NotePosted(1, Lane::kProbe, 0, absl::UnixEpoch());
  lane.proven = false;
  lane.NoteCompleted(0, absl::UnixEpoch(), [](uint64_t number) { FAIL() << number; });
  EXPECT_TRUE(lane.proven);
  EXPECT_EQ(lane.requests_used, 0u);
}

TEST(Explanations, ErrorTwelveSaysForHowLongAndWhatToLookAt) {
  VerbsOptions options;
  options.timeout = 14, options.retry_count = 7, options.traffic_class = 104;
  EXPECT_EQ(StatusText(NicStatus::kRetryExceeded), "transport retry counter exceeded (error 12)");
  const std::string cause = LikelyCause(NicStatus::kRetryExceeded, options);
  for (const char* part : {"8 times", "verbs.timeout 14", "verbs.retry_count 7",
                           "traffic class 104", "ping", "536."}) {
    EXPECT_THAT(cause, HasSubstr(part));
  }
}

TEST(Explanations, EveryStatusHasWordsAndItsNumber) {
  for (int status = 1; status <= 22; ++status) {
    EXPECT_THAT(StatusText(static_cast<NicStatus>(status)),
                HasSubstr("(error " + std::to_string(status) + ")"));
    EXPECT_FALSE(LikelyCause(static_cast<NicStatus>(status), {}).empty());
  }
}

}  // namespace
}  // namespace weft::net
