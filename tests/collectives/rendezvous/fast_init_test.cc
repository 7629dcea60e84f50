// Groups made from one exchange, over a real store.
#include "collectives/rendezvous/fast_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/rendezvous/host_table.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "topology/job/mesh_text.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using topology::JobRank;
using topology::Mesh;
using topology::ParseMesh;

constexpr absl::Duration kPatience = absl::Seconds(30);

TEST(FastInitTest, BothEndsPlanTheSameConnectionsAndNoRankDoesTwoThingsInARound) {
  for (const char* layout : {"tp2,pp3,dp5", "tp8,pp2", "tp1,dp7", "tp3"}) {
    Mesh mesh = ParseMesh(layout).value();
    std::map<std::pair<int, int>, PlannedConnection> plans;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      for (const auto& planned : PlanConnections(mesh.GroupsOf(JobRank(rank)))) {
        EXPECT_TRUE(plans.emplace(std::pair(rank, planned.peer), planned).second);
      }
    }
    for (const auto& [ends, planned] : plans) {
      auto other = plans.find({ends.second, ends.first});
      ASSERT_NE(other, plans.end()) << layout << ": " << ends.first << " and " << ends.second;
      EXPECT_EQ(other->second.round, planned.round);
      EXPECT_NE(other->second.dials, planned.dials) << "one dials, the other listens";
    }
  }
}

TEST(FastInitTest, RecordsSurviveTheirBytes) {
  MemberRecord member{3, "node7", "10.0.0.7:1234", {std::string(kUniqueIdBytes, 'u')}};
  std::string bytes = EncodeMember(member);
  EXPECT_EQ(DecodeMember(bytes).value(), member);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeMember(absl::string_view(bytes).substr(0, cut)).ok());
  }
  EXPECT_FALSE(DecodeMember(bytes + "x").ok());
  std::map<int, MemberRecord> two = {{5, member}, {9, MemberRecord()}};
  EXPECT_EQ(DecodeReplacement(EncodeReplacement(two)).value(), two);
}

TEST(FastInitTest, HostsOfRanksSurviveTheirText) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0}, {0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 0, 1, 1}, {0, 0, 1}}) {
    const std::string text = EncodeNumbers(hosts);
    EXPECT_EQ(DecodeNumbers(text, static_cast<int>(hosts.size())).value(), hosts) << text;
  }
  EXPECT_EQ(EncodeNumbers(std::vector<int>{0, 0, 1, 1}), "2*");
  EXPECT_EQ(NumberNames(std::vector<std::string>{"b", "a", "b"}), (std::vector<int>{0, 1, 0}));
  for (const char* wrong : {"", "0*", "*", "0x3", "0x5", "0x-1,0x5", "9x4", "0x2,1x", "a"}) {
    EXPECT_EQ(DecodeNumbers(wrong, 4).status().code(), absl::StatusCode::kDataLoss) << wrong;
  }
}

TEST(FastInitTest, ARankWantsItsNeighboursAndItsGroupsRootsAlone) {
  Mesh mesh = ParseMesh("tp8,pp8,dp256").value();
  // Its rings' neighbours; the root of all its groups is itself.
  EXPECT_THAT(RecordsWanted(mesh, 0, 256, true).ranks(), ElementsAre(1, 7, 8, 56, 64, 16320));
  // tp1, pp1, dp1: the groups' roots are neighbours, 72, 65 and 9.
  EXPECT_THAT(RecordsWanted(mesh, 73, 256, true).ranks(), ElementsAre(9, 65, 72, 74, 81, 137));
  // tp5, pp0, dp2: 128 and 5 are roots alone.
  EXPECT_THAT(RecordsWanted(mesh, 133, 256, true).ranks(),
              ElementsAre(5, 69, 128, 132, 134, 141, 189, 197));
  EXPECT_THAT(RecordsWanted(mesh, 133, 256, false).ranks(),
              ElementsAre(69, 132, 134, 141, 189, 197));
}

class FastInitStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = StoreServer::Start({});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<StoreClient> Connect(int rank, int generation) const {
    StoreClientOptions options;
    options.address = server_->address();
    options.name = absl::StrCat("rank ", rank, " of generation ", generation);
    options.rank = Rank(rank);
    options.generation = generation;
    auto client = StoreClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  FastInitOptions Options(int rank, int generation) const {
    FastInitOptions options;
    options.mesh = mesh_;
    options.rank = rank;
    options.generation = generation;
    options.host = absl::StrCat("host", rank / 2);
    options.address = absl::StrCat("address ", rank, ".", generation);
    options.ranks_per_root = 2;
    options.timeout = kPatience;
    options.make_unique_id = [rank, generation, count = 0]() mutable {
      std::string id = absl::StrCat("id ", rank, ".", generation, " #", count++);
      id.resize(kUniqueIdBytes, '.');
      return id;
    };
    return options;
  }

  template <typename Body>
  void OnRanks(const std::vector<int>& ranks, Body body) {
    std::vector<std::thread> threads;
    for (int rank : ranks) threads.emplace_back([&, rank] { body(rank); });
    for (auto& thread : threads) thread.join();
  }

  std::vector<int> Everybody() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) ranks.push_back(rank);
    return ranks;
  }

  const Mesh mesh_ = ParseMesh("tp2,dp4").value();
  std::unique_ptr<StoreServer> server_;
};

TEST_F(FastInitStoreTest, AllMembersOfAGroupHoldTheSameAddressesAndIds) {
  std::vector<JobGroups> jobs(static_cast<size_t>(mesh_.ranks()));
  OnRanks(Everybody(), [&](int rank) {
    auto client = Connect(rank, 0);
    auto job = CreateGroups(*client, Options(rank, 0));
    ASSERT_TRUE(job.ok()) << job.status();
    jobs[static_cast<size_t>(rank)] = *std::move(job);
  });
  std::set<std::string> ids;
  auto late = Connect(0, 0);
  for (int rank = 0; rank < mesh_.ranks(); ++rank) {
    const JobGroups& job = jobs[static_cast<size_t>(rank)];
    ASSERT_EQ(job.groups.size(), 2u);
    EXPECT_EQ(job.groups[1].unique_ids.size(), 2u) << "a group of four, two to a root";
    for (size_t axis = 0; axis < 2; ++axis) {
      for (JobRank each : job.groups[axis].group.members) {
        const int member = each.value();
        auto found = FindMembers(*late, Options(rank, 0), RankSet({member}));
        ASSERT_TRUE(found.ok()) << found.status();
        EXPECT_EQ(found->at(member).address, absl::StrCat("address ", member, ".0"));
        EXPECT_EQ(jobs[static_cast<size_t>(member)].groups[axis].unique_ids,
                  job.groups[axis].unique_ids);
      }
      for (const auto& id : job.groups[axis].unique_ids) {
        ids.insert(absl::StrCat(axis, "/", job.groups[axis].group.index, "/", id));
      }
    }
  }
  // Four tp groups of one block, two dp groups of two; no id serves two groups.
  EXPECT_EQ(ids.size(), 4u + 4u);
  std::set<std::string> bare;
  for (const auto& id : ids) bare.insert(id.substr(id.rfind('/')));
  EXPECT_EQ(bare.size(), ids.size());
}

TEST_F(FastInitStoreTest, OnlyThePeersOfReplacedRanksHearOfThemAndTheOldOnesAreFenced) {
  std::map<int, std::unique_ptr<StoreClient>> clients;
  for (int rank : Everybody()) clients[rank] = Connect(rank, 0);
  std::map<int, JobGroups> jobs;
  for (int rank : Everybody()) jobs[rank];
  OnRanks(Everybody(), [&](int rank) {
    auto job = CreateGroups(*clients[rank], Options(rank, 0));
    ASSERT_TRUE(job.ok()) << job.status();
    jobs[rank] = *std::move(job);
  });
  // Ranks 4 and 5, one tp group, come again.
  const std::vector<int> replaced = {4, 5};
  OnRanks(replaced, [&](int rank) {
    auto client = Connect(rank, 1);
    auto job = RejoinGroups(*client, Options(rank, 1), replaced, /*note=*/nullptr);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->members.at(4).address, "address 4.1");
    EXPECT_EQ(job->members.at(rank == 4 ? 0 : 1).generation, 0);
    EXPECT_THAT(job->groups[1].unique_ids[1], HasSubstr(absl::StrCat("id ", rank, ".1")));
  });
  for (int rank : {0, 1, 2, 3, 6, 7}) {
    auto heard = AwaitReplacement(*clients[rank], Options(rank, 0), jobs[rank], 1, kPatience);
    ASSERT_TRUE(heard.ok()) << heard.status();
    EXPECT_THAT(*heard, ElementsAre(rank % 2 == 0 ? 4 : 5));
    EXPECT_EQ(jobs[rank].members.at(heard->front()).address,
              absl::StrCat("address ", heard->front(), ".1"));
    EXPECT_THAT(jobs[rank].groups[1].unique_ids[1],
                HasSubstr(absl::StrCat("id ", heard->front(), ".1")));
    auto other =
        AwaitReplacement(*clients[rank], Options(rank, 0), jobs[rank], 0, absl::Milliseconds(20));
    EXPECT_EQ(other.status().code(), absl::StatusCode::kDeadlineExceeded)
        << "rank " << rank << "'s tp group lost nobody";
  }
  // Whoever knew neither of them finds the new one, and no rank that is none.
  EXPECT_EQ(FindMembers(*clients[3], Options(3, 0), RankSet({4})).value().at(4).address,
            "address 4.1");
  EXPECT_EQ(FindMembers(*clients[3], Options(3, 0), RankSet({8})).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (int rank : replaced) {
    absl::Status late = clients[rank]->Set("k", "v");
    EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(late.message()),
                HasSubstr(absl::StrCat("rank ", rank, " was replaced")));
  }
}

TEST_F(FastInitStoreTest, ARecordThatNobodyGaveIsMissedInBoundedTime) {
  auto client = Connect(0, 0);
  FastInitOptions options = Options(0, 0);
  options.timeout = absl::Milliseconds(50);
  ASSERT_TRUE(client->Set(RecordKey("init", 3), EncodeMember(MemberRecord())).ok());
  absl::Status missing = FindMembers(*client, options, RankSet({3, 5})).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("missing of 2 ranks: 5"));
}

TEST_F(FastInitStoreTest, RankZeroLearnsWhoWasSlowest) {
  OnRanks(Everybody(), [&](int rank) {
    auto client = Connect(rank, 0);
    auto report = ReportPhases(*client, Options(rank, 0),
                               {{"connect", absl::Milliseconds(rank == 3 ? 90 : rank)},
                                {"exchange", absl::Milliseconds(10 - rank)}});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->phases.size(), rank == 0 ? 2u : 0u);
    if (rank != 0) return;
    EXPECT_EQ(report->phases[0].slowest, 3);
    EXPECT_EQ(report->phases[0].host, "host1");
    EXPECT_NEAR(report->phases[0].max, 0.090, 1e-9);
    EXPECT_EQ(report->phases[1].slowest, 0);
  });
}

}  // namespace
}  // namespace weft::collectives
