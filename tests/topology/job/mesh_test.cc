// Ranks, coordinates and groups of a mesh: known layouts by hand, and what holds of every mesh.
#include "topology/job/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Mesh MakeMesh(std::vector<AxisSize> axes) { return Mesh::Create(axes).value(); }

std::vector<int> Ranks(const MeshGroup& group) {
  std::vector<int> ranks;
  for (JobRank rank : group.members) ranks.push_back(rank.value());
  return ranks;
}

std::vector<AxisSet> AllAxisSets() {
  std::vector<AxisSet> sets;
  for (unsigned bits = 0; bits < 1U << kAxisCount; ++bits) {
    AxisSet axes;
    for (Axis axis : kDataInsidePipeline) {
      if ((bits >> static_cast<unsigned>(axis) & 1U) != 0) axes.Add(axis);
    }
    sets.push_back(axes);
  }
  return sets;
}

// All five axes with sizes that tell them apart, in every order of nesting; and lists of fewer.
std::vector<Mesh> ManyMeshes() {
  std::vector<AxisSize> axes = {{Axis::kTensor, 2},
                                {Axis::kContext, 1},
                                {Axis::kExpert, 2},
                                {Axis::kData, 3},
                                {Axis::kPipeline, 5}};
  auto before = [](const AxisSize& a, const AxisSize& b) { return a.axis < b.axis; };
  std::vector<Mesh> meshes = {Mesh(), MakeMesh({{Axis::kData, 7}}),
                              MakeMesh({{Axis::kPipeline, 3}, {Axis::kTensor, 4}})};
  do {
    meshes.push_back(MakeMesh(axes));
  } while (std::next_permutation(axes.begin(), axes.end(), before));
  return meshes;
}

TEST(Mesh, TheFirstAxisVariesFastestWithTheRank) {
  // MegaScale: data groups before pipeline groups.
  Mesh mesh = MakeMesh({{Axis::kTensor, 8}, {Axis::kData, 192}, {Axis::kPipeline, 8}});
  EXPECT_EQ(mesh.ranks(), 12288);
  EXPECT_EQ(mesh.CoordinateOf(JobRank(8 * 5 + 3), Axis::kTensor), 3);
  EXPECT_EQ(mesh.CoordinateOf(JobRank(8 * 5 + 3), Axis::kData), 5);
  EXPECT_EQ(mesh.CoordinateOf(JobRank(8 * 192 * 7), Axis::kPipeline), 7);
  EXPECT_EQ(mesh.Stride(Axis::kPipeline), 8 * 192);
  EXPECT_EQ(mesh.Size(Axis::kContext), 1);
  EXPECT_EQ(mesh.ToText(), "tp8,dp192,pp8");
  EXPECT_EQ(mesh.Describe(), "tensor 8 x data 192 x pipeline 8");
  // Megatron-LM's older order: pipelines before data groups.
  mesh = MakeMesh({{Axis::kTensor, 8}, {Axis::kPipeline, 8}, {Axis::kData, 192}});
  EXPECT_EQ(mesh.Stride(Axis::kData), 64);
  EXPECT_EQ(mesh.CoordinateOf(JobRank(64 * 5 + 9), Axis::kPipeline), 1);
}

TEST(Mesh, GroupsAreTheRanksThatDifferInTheirCoordinatesOnly) {
  Mesh mesh = MakeMesh({{Axis::kTensor, 2}, {Axis::kPipeline, 3}, {Axis::kData, 2}});
  EXPECT_EQ(mesh.ranks(), 12);
  EXPECT_THAT(Ranks(mesh.GroupOf(JobRank(9), {Axis::kTensor})), ElementsAre(8, 9));
  EXPECT_THAT(Ranks(mesh.GroupOf(JobRank(9), {Axis::kPipeline})), ElementsAre(7, 9, 11));
  EXPECT_THAT(Ranks(mesh.GroupOf(JobRank(9), {Axis::kData})), ElementsAre(3, 9));
  EXPECT_EQ(mesh.GroupOf(JobRank(9), {Axis::kPipeline}).position, 1);
  // Products of axes, in whichever order they are named.
  EXPECT_THAT(Ranks(mesh.GroupOf(JobRank(9), {Axis::kData, Axis::kTensor})),
              ElementsAre(2, 3, 8, 9));
  EXPECT_EQ(mesh.GroupOf(JobRank(9), {Axis::kData, Axis::kTensor}).position, 3);
  EXPECT_THAT(Ranks(mesh.GroupOf(JobRank(4), {Axis::kContext})), ElementsAre(4));
}

TEST(Mesh, RanksAndCoordinatesAreOneToOne) {
  for (const Mesh& mesh : ManyMeshes()) {
    std::set<MeshCoordinate> seen;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      MeshCoordinate coordinate = mesh.CoordinateOf(JobRank(rank));
      EXPECT_TRUE(seen.insert(coordinate).second);
      EXPECT_EQ(mesh.RankAt(coordinate), JobRank(rank));
      for (Axis axis : kDataInsidePipeline) {
        EXPECT_GE(mesh.CoordinateOf(JobRank(rank), axis), 0);
        EXPECT_LT(mesh.CoordinateOf(JobRank(rank), axis), mesh.Size(axis));
      }
    }
  }
}

TEST(Mesh, ANeighbourOnAnAxisIsAStrideAway) {
  for (const Mesh& mesh : ManyMeshes()) {
    for (const MeshAxis& axis : mesh.axes()) {
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        MeshCoordinate coordinate = mesh.CoordinateOf(JobRank(rank));
        if (++coordinate[static_cast<size_t>(axis.axis)] == axis.size) continue;
        EXPECT_EQ(mesh.RankAt(coordinate).value(), rank + mesh.Stride(axis.axis));
      }
    }
  }
}

TEST(Mesh, TheGroupsOfEverySetOfAxesPartitionTheRanks) {
  for (const Mesh& mesh : ManyMeshes()) {
    for (AxisSet axes : AllAxisSets()) {
      std::map<int, std::vector<JobRank>> groups;
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        MeshGroup group = mesh.GroupOf(JobRank(rank), axes);
        EXPECT_EQ(group.members[static_cast<size_t>(group.position)], JobRank(rank));
        EXPECT_EQ(group.position, mesh.PositionIn(JobRank(rank), axes));
        EXPECT_EQ(group.index, mesh.GroupIndexOf(JobRank(rank), axes));
        EXPECT_TRUE(std::is_sorted(group.members.begin(), group.members.end()));
        // All of its members name the same group, at the same number.
        auto [known, added] = groups.emplace(group.index, group.members);
        EXPECT_EQ(known->second, group.members);
      }
      EXPECT_EQ(static_cast<int>(groups.size()), mesh.GroupCount(axes));
      EXPECT_EQ(groups.rbegin()->first, mesh.GroupCount(axes) - 1);
      std::set<JobRank> all;
      JobRank lowest;
      for (const auto& [index, members] : groups) {
        EXPECT_EQ(static_cast<int>(members.size()), mesh.GroupSize(axes));
        EXPECT_LT(lowest, members.front()) << "groups are numbered by their lowest ranks";
        lowest = members.front();
        all.insert(members.begin(), members.end());
      }
      EXPECT_EQ(static_cast<int>(all.size()), mesh.ranks());
    }
  }
}

TEST(Mesh, WithinAGroupOnlyItsOwnCoordinatesDiffer) {
  for (const Mesh& mesh : ManyMeshes()) {
    for (AxisSet axes : AllAxisSets()) {
      for (int rank = 0; rank < mesh.ranks(); rank += 7) {
        for (JobRank member : mesh.GroupOf(JobRank(rank), axes).members) {
          for (Axis axis : kDataInsidePipeline) {
            if (axes.Has(axis)) continue;
            EXPECT_EQ(mesh.CoordinateOf(member, axis), mesh.CoordinateOf(JobRank(rank), axis));
          }
        }
      }
    }
  }
}

TEST(Mesh, AGroupAlongEachListedAxisEvenWhereItHasOnePlace) {
  Mesh mesh = MakeMesh({{Axis::kTensor, 1}, {Axis::kData, 2}});
  std::vector<MeshGroup> groups = mesh.GroupsOf(JobRank(1));
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].axes, AxisSet{Axis::kTensor});
  EXPECT_THAT(Ranks(groups[0]), ElementsAre(1));
  EXPECT_THAT(Ranks(groups[1]), ElementsAre(0, 1));
}

TEST(Mesh, WithoutAxesThereIsOneRank) {
  EXPECT_EQ(Mesh().ranks(), 1);
  EXPECT_EQ(Mesh().Describe(), "1 rank");
  EXPECT_THAT(Ranks(Mesh().GroupOf(JobRank(0), {Axis::kData})), ElementsAre(0));
}

TEST(Mesh, RefusesWhatCannotBe) {
  auto message = [](std::vector<AxisSize> axes) {
    return std::string(Mesh::Create(axes).status().message());
  };
  EXPECT_THAT(message({{Axis::kData, 0}}), HasSubstr("data is 0"));
  EXPECT_THAT(message({{Axis::kData, 2}, {Axis::kData, 2}}), HasSubstr("data is named twice"));
  EXPECT_THAT(message({{Axis::kTensor, 2048}, {Axis::kContext, 2048}, {Axis::kData, 2048}}),
              HasSubstr("multiply to more than 1048576 ranks"));
  EXPECT_EQ(message({{Axis::kTensor, 1024}, {Axis::kData, 1024}}), "");
}

TEST(Mesh, SetsOfAxesAreNamedInAFixedOrder) {
  EXPECT_EQ(ToString(AxisSet{Axis::kData, Axis::kContext}), "context+data");
  EXPECT_EQ(Brief(AxisSet{Axis::kPipeline, Axis::kTensor}), "tp+pp");
}

TEST(MeshDeathTest, ARankThatIsNoneAborts) {
  Mesh mesh = MakeMesh({{Axis::kData, 2}});
  EXPECT_DEATH((void)mesh.CoordinateOf(JobRank(2)), "rank 2 of 2");
  EXPECT_DEATH((void)mesh.GroupOf(JobRank(), {Axis::kData}), "rank -1 of 2");
}

}  // namespace
}  // namespace weft::topology
