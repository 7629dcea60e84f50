// What is planned by: a machine's costs and their file, what the settings force, and the groups
// that are used at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/forced.h"
#include "collectives/planner/planner.h"
#include "tests/collectives/planner_cases.h"

namespace weft::collectives::planner {
namespace {

TEST(CostTableTest, TravelsUnchanged) {
  CostTable table = Table(3, "verbs");
  table.source = "a file, with spaces";
  table.inside.latency = 1.0 / 3;
  const CostTable other = *FromWord(ToWord(table));
  EXPECT_EQ(ToWord(other), ToWord(table));
  EXPECT_EQ(other.inside.latency, table.inside.latency);
  EXPECT_EQ(other.across.host_byte, table.across.host_byte);
  EXPECT_EQ(other.cores, 3);
  EXPECT_EQ(other.eager_bytes, 4096);
  EXPECT_EQ(other.cache_bytes, 1 << 20);
  const CostTable shm = Table(3, "shm");
  const CostTable same = *FromWord(ToWord(shm));
  EXPECT_EQ(same.segment_byte, DefaultCalibration().segment_byte);
  EXPECT_EQ(same.read_bytes, 32 << 10);
  EXPECT_EQ(same.inside_eager_bytes, 4 << 10);
  EXPECT_TRUE(other.across_by_nic);
  EXPECT_EQ(other.source, table.source);
  EXPECT_EQ(ToWord(table).find(' '), std::string::npos);
  for (const char* wrong : {"", "-", "1,2,3", "a,b,c,d,e,f,g,h,i,j,k,1,1,1,"}) {
    EXPECT_EQ(FromWord(wrong).status().code(), absl::StatusCode::kDataLoss) << wrong;
  }
}

TEST(CalibrationTest, ARankWithoutPeersReadsNobodysMemory) {
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("transport", "shm", "test").ok());
  ASSERT_TRUE(settings.Set("shm.single_copy", "on", "test").ok());  // no trial: peers are read
  EXPECT_EQ(LoadTable(settings, 2)->read_bytes, settings.ByteCount("shm.single_copy_min").count());
  EXPECT_GT(LoadTable(settings, 2, /*has_peers=*/false)->read_bytes, int64_t{1} << 40);
}

TEST(CalibrationTest, AFileIsReadAsWrittenAndItsFaultsAreNamed) {
  const std::string text = ToText(DefaultCalibration());
  const Calibration read = *ParseCalibration(text, "costs");
  EXPECT_EQ(ToText(read), text);
  EXPECT_EQ(read.source, "costs");
  auto fault = [](const std::string& wrong) {
    return std::string(ParseCalibration(wrong, "costs").status().message());
  };
  EXPECT_NE(fault(text + "tcp.latency 1\n").find("costs, line 27: \"tcp.latency 1\""),
            std::string::npos)
      << fault(text + "tcp.latency 1\n");
  EXPECT_EQ(fault("shm.latency 1\n"), "costs lacks cache_kib");
  for (const char* wrong : {"shm.latency -1\n", "shm.latency nan\n", "shm.latency 1 2\n", "x\n"}) {
    EXPECT_NE(fault(wrong).find("line 1"), std::string::npos) << fault(wrong);
  }
}

// What was measured, and the cores of rank 0's machine, change no choice.
TEST(CalibrationTest, ADeterministicJobChoosesAlikeOnEveryMachine) {
  Calibration odd = DefaultCalibration();
  odd.links[0].latency *= 1000, odd.links[1].byte *= 30;
  const std::string file = absl::StrCat(testing::TempDir(), "/deterministic", getpid());
  ASSERT_TRUE(SaveCalibration(odd, file).ok());
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("collective.costs", file, "test").ok());
  const auto choices = [&](int cores) {
    const CostTable table = *LoadTable(settings, cores);
    std::string all;
    for (uint64_t count = 1; count < 1 << 26; count *= 4) {
      for (int k = 0; k < kCollectiveKindCount; ++k) {
        CollectiveSpec spec = Spec(static_cast<CollectiveKind>(k), 8, count);
        if (spec.kind == CollectiveKind::kAllGatherV) continue;
        spec.place = Hosts(2, 4);
        absl::StrAppend(&all, ChoosePlan(spec, 4, table, "").ToText(), " ");
      }
    }
    return all;
  };
  const std::string measured = choices(1);
  EXPECT_NE(measured, choices(64));
  ASSERT_TRUE(settings.Set("collective.deterministic", "true", "test").ok());
  EXPECT_EQ(choices(1), choices(64));
  EXPECT_NE(measured, choices(1));
  const std::string before = choices(2);
  ASSERT_TRUE(SaveCalibration(DefaultCalibration(), file).ok());
  EXPECT_EQ(choices(2), before);
  std::filesystem::remove(file);
}

TEST(CalibrationTest, TheSettingNamesTheFile) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("calibration", getpid());
  const std::string file = folder / "deeper" / "costs";
  Calibration calibration = DefaultCalibration();
  calibration.links[0].latency = 12345;
  ASSERT_TRUE(SaveCalibration(calibration, file).ok());
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("collective.costs", file, "test").ok());
  EXPECT_EQ(LoadCalibration(settings)->links[0].latency, 12345);
  std::ofstream(file) << "broken\n";
  EXPECT_EQ(LoadCalibration(settings).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(LoadCalibration(settings).status().code(), absl::StatusCode::kNotFound);
}

absl::StatusOr<Forced> ForcedBy(const char* every, const char* by_kind) {
  Settings settings(LibrarySettings());
  EXPECT_TRUE(settings.Set("collective.algorithm", every, "test").ok());
  EXPECT_TRUE(settings.Set("collective.algorithm_by_kind", by_kind, "test").ok());
  return Forced::Create(settings);
}

TEST(ForcedTest, OneForAllAndOneForEach) {
  const Forced forced = *ForcedBy("ring", "broadcast=chain, all_gather=auto");
  auto of = [&](CollectiveKind kind) { return forced.For(Spec(kind, 4, 100), 4, "world"); };
  EXPECT_EQ(of(CollectiveKind::kAllReduce), "ring");
  EXPECT_EQ(of(CollectiveKind::kBroadcast), "chain");
  EXPECT_EQ(of(CollectiveKind::kAllGather), "");
  EXPECT_EQ(of(CollectiveKind::kGather), "");
  const Plan plan = ChoosePlan(Spec(CollectiveKind::kAllReduce, 4, 1), 4, Table(), "ring");
  EXPECT_EQ(plan.algorithm, &kRing);
}

TEST(ForcedTest, BySizeAndGroupTheLastThatFitsCounts) {
  const Forced forced =
      *ForcedBy("auto",
                "all_reduce:4KiB..1MiB=tree, all_reduce:1MiB..@dp*=ring, all_reduce@tp0=direct,"
                "all_reduce:..400@dp3=auto, all_gather:..1KiB=bruck");
  auto of = [&](uint64_t count, const char* group) {
    return forced.For(Spec(CollectiveKind::kAllReduce, 4, count), 4, group);
  };
  EXPECT_EQ(of(1023, "world"), "");
  EXPECT_EQ(of(1024, "world"), "tree");
  EXPECT_EQ(of(262144, "world"), "tree");
  EXPECT_EQ(of(262144, "dp0"), "ring");
  EXPECT_EQ(of(262145, "world"), "");
  EXPECT_EQ(of(1 << 30, "dp12"), "ring");
  EXPECT_EQ(of(1, "tp0"), "direct");
  EXPECT_EQ(of(1, "tp01"), "");
  // A gathered buffer counts as a whole.
  EXPECT_EQ(forced.For(Spec(CollectiveKind::kAllGather, 4, 64), 4, ""), "bruck");
  EXPECT_EQ(forced.For(Spec(CollectiveKind::kAllGather, 4, 65), 4, ""), "");
}

TEST(ForcedTest, AnAllToAllWithCountsHasTheSizeOfItsTypicalCount) {
  CollectiveSpec counted = Spec(CollectiveKind::kAllToAllV, 8, 0);
  const Forced forced = *ForcedBy("auto", "all_to_all_v:1KiB..1MiB=pairwise");
  EXPECT_EQ(forced.For(counted, 4, "world"), "");
  counted.count = 1024;
  EXPECT_EQ(forced.For(counted, 4, "world"), "pairwise");
}

TEST(ForcedTest, NamesTheRuleAndWhatWouldBeRight) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"all_reduce=bruck", "there are auto, multicast, oneshot"},
      {"all_redcue=ring", "there are all_reduce, all_gather"},
      {"ring", "as all_reduce=tree"},
      {"gather=tree", "an algorithm that gather lacks"},
      {"all_reduce:1MiB=ring", "no range, as 1MiB..64MiB"},
      {"all_reduce:2MiB..1MiB=ring", "end before they begin"},
      {"all_reduce:1Mist..=ring", "1Mist"},
      {"all_reduce@=ring", "names no group"}};
  for (const auto& [wrong, why] : wrongs) {
    const absl::Status status = ForcedBy("auto", wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(absl::StrCat("\"", wrong, "\"")), std::string::npos) << status;
    EXPECT_NE(status.message().find(why), std::string::npos) << status;
  }
}

TEST(ConcurrentTest, CountsTheGroupsAlongTheSameAxesOnTheBusiestHost) {
  const auto mesh = topology::Mesh::Create(
      {{topology::Axis::kTensor, 2}, {topology::Axis::kData, 3}, {topology::Axis::kPipeline, 2}});
  ASSERT_TRUE(mesh.ok());
  auto count = [&](std::vector<int> ranks, int ranks_per_host) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    return GroupsAtOnce(*mesh, members, [&](Rank r) { return r.value() / ranks_per_host; });
  };
  EXPECT_EQ(count({0, 1}, 6), 3);               // tensor: three pairs on each of two hosts
  EXPECT_EQ(count({0, 2, 4}, 6), 2);            // data
  EXPECT_EQ(count({0, 6}, 6), 6);               // pipeline, across
  EXPECT_EQ(count({0, 6}, 12), 6);              // and on one host
  EXPECT_EQ(count({0, 2, 4, 6, 8, 10}, 6), 2);  // along two axes
  EXPECT_EQ(count({4, 2, 0}, 6), 2);            // in any order
  EXPECT_EQ(count({8, 9}, 4), 2);               // of the last host
  EXPECT_EQ(count({0, 2}, 6), 1);               // not a whole group
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 6), 1);
}

// Four hosts of four ranks: a tensor group stays on its host, data and pipeline groups leave it.
TEST(ConcurrentTest, CountsTheGroupsAlongOtherAxesAtTheNicsOfAHost) {
  const auto mesh = *topology::Mesh::Create(
      {{topology::Axis::kTensor, 2}, {topology::Axis::kData, 4}, {topology::Axis::kPipeline, 2}});
  auto count = [&](std::vector<int> ranks, absl::string_view at_once) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    const auto axes = ParseAxesAtOnce(at_once);
    EXPECT_TRUE(axes.ok()) << axes.status();
    return OthersAtOnce(mesh, members, *axes, [](Rank r) { return r.value() / 4; });
  };
  EXPECT_EQ(count({0, 2, 4, 6}, "all"), 4);  // the four pipelines of a host
  EXPECT_EQ(count({0, 8}, "all"), 2);        // two data groups
  EXPECT_EQ(count({0, 1}, "all"), 6);        // tensor: both, from its one host
  EXPECT_EQ(count({0, 8}, "tp,pp"), 0);      // tensor groups use no NIC
  EXPECT_EQ(count({0, 8}, "tensor,dp,pp"), 2);
  EXPECT_EQ(count({0, 8}, "tp,dp"), 0);  // pipelines do not run then
  EXPECT_EQ(count({0, 8}, "none"), 0);
  EXPECT_EQ(count({0, 2}, "all"), 0);  // not a whole group
  EXPECT_THAT(std::string(ParseAxesAtOnce("tp,rows").status().message()),
              testing::HasSubstr("collective.axes_at_once \"tp,rows\""));
}

// A job that has said no layout, as PyTorch's have: groups of equal strides are taken for those of
// a mesh, whose like are all used at once.
TEST(ConcurrentTest, GroupsOfAJobWithoutALayoutAreCountedByTheirStride) {
  const auto mesh = *topology::Mesh::Create({{topology::Axis::kData, 16}});
  auto count = [&](std::vector<int> ranks) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    return GroupsAtOnce(mesh, members, [&](Rank r) { return r.value() / 8; });
  };
  EXPECT_EQ(count({0, 1, 2, 3}), 2);      // tensor ranks of a host with eight
  EXPECT_EQ(count({12, 13, 14, 15}), 2);  // the last of them
  EXPECT_EQ(count({3, 7, 11, 15}), 4);    // data, across hosts
  EXPECT_EQ(count({8, 0}), 8);            // in any order
  EXPECT_EQ(count({0, 15}), 1);           // first and last stage: of no such layout
  EXPECT_EQ(count({1, 2, 3, 4}), 1);      // across the borders of one
  EXPECT_EQ(count({0, 1, 2, 4}), 1);
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), 1);
}

// With `shared` as the spec's `member` instead of `alone`, eight times as many bytes leave a host:
// what costs the wire least is taken then, and not what costs a rank least.
void ExpectTheWireIsShared(int CollectiveSpec::*member, int alone, int shared) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 4, 4 << 20);
  spec.place = Hosts(4, 1);
  const CostTable table = Table(64, "verbs");
  const int64_t time_alone = TimeOf(kDirect.cost(spec), spec, 4, table);
  spec.*member = shared;
  const int64_t time_shared = TimeOf(kDirect.cost(spec), spec, 4, table);
  EXPECT_GT(time_shared, 7 * time_alone);
  EXPECT_LE(time_shared, 8 * time_alone);
  spec.count = 4096;
  const Plan together = ChoosePlan(spec, 4, table, "");
  spec.*member = alone;
  const Plan by_itself = ChoosePlan(spec, 4, table, "");
  EXPECT_LT(together.algorithm->cost(SpecOf(together, spec)).elements_across,
            by_itself.algorithm->cost(SpecOf(by_itself, spec)).elements_across)
      << together.why << "\n"
      << by_itself.why;
}

TEST(ConcurrentTest, GroupsAtOnceShareCoresMemoryAndTheWire) {
  ExpectTheWireIsShared(&CollectiveSpec::groups_at_once, 1, 8);
}

// Groups along other axes take their part of the NICs, and nothing on one host.
TEST(ConcurrentTest, GroupsAlongOtherAxesShareTheWireAlone) {
  ExpectTheWireIsShared(&CollectiveSpec::others_at_once, 0, 7);
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 4, 4096);
  const CostTable table = Table(64, "verbs");
  const int64_t inside = TimeOf(kDirect.cost(spec), spec, 4, table);
  spec.others_at_once = 7;
  EXPECT_EQ(TimeOf(kDirect.cost(spec), spec, 4, table), inside);
}

}  // namespace
}  // namespace weft::collectives::planner
