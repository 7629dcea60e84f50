// Relays over real sockets: what many ranks ask arrives at the root as one message a host.
#include "collectives/store/relay/store_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/relay/store_relay_tree.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(100);
constexpr int kHosts = 3;
constexpr int kPerHost = 4;
constexpr int kWorld = kHosts * kPerHost;

class StoreRelayTest : public testing::Test {
 protected:
  void SetUp() override {
    StoreServerOptions options;
    options.core.secret = secret_;
    options.core.description = "root";
    auto server = StoreServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (int host = 0; host < kHosts; ++host) relays_.push_back(StartRelay(host));
  }

  std::unique_ptr<StoreRelay> StartRelay(int host, int generation = 0) const {
    StoreRelayOptions options;
    options.up = server_->address();
    options.secret = secret_;
    options.name = absl::StrCat("launcher ", host);
    options.job = "job";
    options.host = absl::StrCat("node", host);
    options.first_rank = host * kPerHost;
    options.ranks = kPerHost;
    options.world = kWorld;
    options.generation = generation;
    auto relay = StoreRelay::Start(options);
    EXPECT_TRUE(relay.ok()) << relay.status();
    return relay.ok() ? *std::move(relay) : nullptr;
  }

  std::unique_ptr<StoreClient> Connect(int rank, int generation = 0) const {
    StoreClientOptions options;
    options.address = relays_[static_cast<size_t>(rank / kPerHost)]->address();
    options.name = absl::StrCat("rank ", rank);
    options.job = "job";
    options.rank = Rank(rank);
    options.generation = generation;
    options.reconnect = kShort;
    auto client = StoreClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Runs `body` in a thread a rank.
  template <typename Body>
  void OnRanks(const std::vector<int>& ranks, Body body) {
    std::vector<std::thread> threads;
    for (int rank : ranks) {
      threads.emplace_back([&, rank] {
        auto client = Connect(rank);
        if (client != nullptr) body(rank, *client);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  static std::vector<int> Everybody() {
    std::vector<int> ranks;
    for (int rank = 0; rank < kWorld; ++rank) ranks.push_back(rank);
    return ranks;
  }

  const net::JobSecret secret_ = net::NewJobSecret();
  std::unique_ptr<StoreServer> server_;
  std::vector<std::unique_ptr<StoreRelay>> relays_;
};

TEST_F(StoreRelayTest, PassesOnWhatItsRanksAsk) {
  auto one = Connect(0);
  auto other = Connect(kWorld - 1);
  EXPECT_EQ(one->server(), "relay launcher 0 on node0");
  ASSERT_TRUE(one->Set("key", "value").ok());
  EXPECT_EQ(other->Get("key", kPatience).value(), "value");
  EXPECT_EQ(other->Add("n", 2).value(), 2);
  EXPECT_EQ(one->Add("n", 3).value(), 5);
  EXPECT_EQ(one->CompareSet("c", "", "x").value(), "x");
  EXPECT_EQ(other->MultiGet({"key", "n"}, kPatience).value(),
            std::vector<std::string>({"value", "5"}));
  EXPECT_EQ(one->Get("absent", kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::string large(size_t{1} << 20, 'x');
  ASSERT_TRUE(one->Set("large", large).ok());
  EXPECT_TRUE(other->Get("large", kPatience).value() == large);
  std::thread setter([&] { EXPECT_TRUE(one->Set("late", "come").ok()); });
  EXPECT_EQ(other->Get("late", kPatience).value(), "come");
  setter.join();
}

TEST_F(StoreRelayTest, TheRootSeesOneMessageAHost) {
  int64_t before = server_->statistics().requests;
  std::atomic<int> connected = 0;
  OnRanks(Everybody(), [&](int rank, StoreClient& client) {
    ++connected;  // whoever connects late does not call late for that
    const absl::Time limit = absl::Now() + kPatience;
    while (connected < kWorld && absl::Now() < limit) std::this_thread::yield();
    EXPECT_TRUE(client.Barrier("b", rank, kWorld, kPatience).ok());
  });
  // Ranks that come later than the others of their host by more than the linger go alone, so on a
  // slow machine there may be more; one a rank would mean that nothing is combined.
  int64_t messages = server_->statistics().requests - before;
  EXPECT_GE(messages, kHosts);
  EXPECT_LT(messages, kWorld);
  EXPECT_EQ(server_->statistics().sessions, kHosts);
}

TEST_F(StoreRelayTest, EveryRankGathersSmallAndLargeValues) {
  OnRanks(Everybody(), [](int rank, StoreClient& client) {
    for (size_t size : {size_t{8}, size_t{40000}}) {
      std::string value(size, static_cast<char>('a' + rank));
      auto all = client.AllGather(absl::StrCat("g", size), rank, kWorld, value, kPatience);
      ASSERT_TRUE(all.ok()) << all.status();
      for (int i = 0; i < kWorld; ++i) {
        EXPECT_EQ((*all)[static_cast<size_t>(i)], std::string(size, static_cast<char>('a' + i)));
      }
    }
  });
}

TEST_F(StoreRelayTest, AnExchangeMovesWhatIsWantedAndAnAllGatherEverything) {
  std::map<bool, Bytes> sent;
  for (bool all : {true, false}) {
    Bytes before = server_->statistics().bytes_sent;
    OnRanks(Everybody(), [all](int rank, StoreClient& client) {
      std::string value(40000, static_cast<char>('a' + rank));
      // The same rank of the next host: of a host's ranks, a third of everything.
      int next = (rank + kPerHost) % kWorld;
      auto got = all ? client.AllGather("all", rank, kWorld, value, kPatience)
                     : client.Exchange("some", rank, kWorld, value, RankSet({next}), kPatience);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ((*got)[all ? static_cast<size_t>(next) : 0],
                std::string(40000, static_cast<char>('a' + next)));
    });
    sent[all] = server_->statistics().bytes_sent - before;
  }
  EXPECT_GE(sent[true], Bytes(kHosts * kWorld * 40000));
  EXPECT_LT(sent[false], sent[true] / 2);
}

TEST_F(StoreRelayTest, OnlyTheRootOfAGatherGetsTheValues) {
  OnRanks(Everybody(), [](int rank, StoreClient& client) {
    auto all = client.Gather("g", rank, kWorld, 5, absl::StrCat(rank), kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(all->size(), rank == 5 ? kWorld : 0u);
    if (rank == 5) {
      EXPECT_EQ((*all)[7], "7");
    }
  });
}

TEST_F(StoreRelayTest, GroupsWithinTheWorldMeetToo) {
  OnRanks(Everybody(), [](int rank, StoreClient& client) {
    // One rank a host: rank % kPerHost is the group.
    std::string key = absl::StrCat("group ", rank % kPerHost);
    auto all = client.AllGather(key, rank / kPerHost, kHosts, absl::StrCat(rank), kPatience);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_THAT(*all,
                ElementsAre(absl::StrCat(rank % kPerHost), absl::StrCat(rank % kPerHost + kPerHost),
                            absl::StrCat(rank % kPerHost + 2 * kPerHost)));
  });
}

TEST_F(StoreRelayTest, NamesMissingRanksAndTheirHosts) {
  std::vector<int> ranks = Everybody();
  ranks.erase(ranks.begin() + 6);
  OnRanks(ranks, [](int rank, StoreClient& client) {
    absl::Status status = client.Barrier("b", rank, kWorld, absl::Seconds(2));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("6 ("), HasSubstr("node1")));
  });
}

TEST_F(StoreRelayTest, ARankThatComesTwiceFailsAlone) {
  auto twin = Connect(0);
  absl::Status first;
  std::thread waits([&] { first = twin->Barrier("b", 0, kWorld, kPatience); });
  auto again = Connect(0);
  absl::Status second;
  std::thread doubles([&] { second = again->Barrier("b", 0, kWorld, kPatience); });
  std::vector<int> others = Everybody();
  others.erase(others.begin());
  OnRanks(others, [](int rank, StoreClient& client) {
    EXPECT_TRUE(client.Barrier("b", rank, kWorld, kPatience).ok());
  });
  waits.join();
  doubles.join();
  // Which of the two is the impostor nobody can say.
  EXPECT_NE(first.ok(), second.ok()) << first << second;
}

// The relays of `hosts` hosts of `kPerHost` ranks, as their launchers start them.
class StoreRelayTreeTest : public StoreRelayTest {
 protected:
  void SetUp() override {
    StoreRelayTest::SetUp();
    relays_.clear();
    constexpr int kTreeHosts = 5;
    for (int host = 0; host < kTreeHosts; ++host) {
      StoreRelayTreeOptions options;
      options.relay.up = server_->address();
      options.relay.secret = secret_;
      options.relay.name = absl::StrCat("launcher ", host);
      options.relay.job = "job";
      options.relay.host = absl::StrCat("node", host);
      options.relay.first_rank = host * kPerHost;
      options.relay.ranks = kPerHost;
      options.relay.world = kTreeHosts * kPerHost;
      options.host = host;
      options.hosts = kTreeHosts;
      options.fan_out = 2;
      auto relays = StartRelays(options);
      ASSERT_TRUE(relays.ok()) << relays.status();
      EXPECT_EQ(relays->above != nullptr, host % 2 == 0);
      tree_.push_back(*std::move(relays));
    }
    ranks_ = kTreeHosts * kPerHost;
  }

  // Calls `rank(store, number)` for all ranks at once.
  template <typename Rank>
  void AllRanks(Rank rank) {
    std::vector<std::thread> threads;
    for (int number = 0; number < ranks_; ++number) {
      threads.emplace_back([&, number] {
        StoreClientOptions options;
        options.address = tree_[static_cast<size_t>(number / kPerHost)].host->address();
        options.secret = secret_;
        options.name = absl::StrCat("rank ", number);
        options.job = "job";
        options.host = absl::StrCat("node", number / kPerHost);
        options.rank = weft::Rank(number);
        auto store = StoreClient::Connect(options);
        ASSERT_TRUE(store.ok()) << store.status();
        rank(**store, number);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  int ranks_ = 0;
  std::vector<StoreRelays> tree_;
};

TEST_F(StoreRelayTreeTest, EveryRankGathersSmallAndLargeValuesThroughTwoRelays) {
  for (size_t bytes : {size_t{5}, size_t{20000}}) {
    AllRanks([&](StoreClient& store, int rank) {
      std::string own(bytes, static_cast<char>('a' + rank));
      auto all = store.AllGather(absl::StrCat("all", bytes), rank, ranks_, own, kPatience);
      ASSERT_TRUE(all.ok()) << all.status();
      for (int r = 0; r < ranks_; ++r) {
        EXPECT_EQ((*all)[static_cast<size_t>(r)], std::string(bytes, static_cast<char>('a' + r)));
      }
    });
  }
}

TEST_F(StoreRelayTreeTest, EveryRankGetsWhatItWantsThroughTwoRelays) {
  for (size_t bytes : {size_t{5}, size_t{20000}}) {
    AllRanks([&](StoreClient& store, int rank) {
      std::string own(bytes, static_cast<char>('a' + rank));
      RankSet wanted({(rank + 1) % ranks_, (rank + 7) % ranks_});
      std::string key = absl::StrCat("some", bytes);
      auto some = store.Exchange(key, rank, ranks_, own, wanted, kPatience);
      ASSERT_TRUE(some.ok()) << some.status();
      std::vector<int> ranks = wanted.ranks();
      ASSERT_EQ(some->size(), ranks.size());
      for (size_t i = 0; i < ranks.size(); ++i) {
        EXPECT_EQ((*some)[i], std::string(bytes, static_cast<char>('a' + ranks[i])));
      }
      int later = (rank + 11) % ranks_;
      EXPECT_EQ(store.Get(ExchangedKey(key, later), kPatience).value(),
                std::string(bytes, static_cast<char>('a' + later)));
    });
  }
}

TEST_F(StoreRelayTreeTest, AMissingRankIsNamedWithItsHost) {
  AllRanks([&](StoreClient& store, int rank) {
    ASSERT_TRUE(store.Barrier("here", rank, ranks_, kPatience).ok());
    if (rank != 0) return;
    absl::Status status = store.Barrier("b", 0, 2 * kPerHost, kShort);
    EXPECT_THAT(status.ToString(),
                AllOf(HasSubstr("7 of 8 ranks missing after 100ms"), HasSubstr("1 (relay "),
                      HasSubstr("on node0)"), HasSubstr("7 (relay launcher 1 on node1)")));
  });
}

TEST_F(StoreRelayTreeTest, ItsFirstRelayAboveServesNoUnauthenticatedClients) {
  StoreRelayTreeOptions options;
  options.relay.up = server_->address();
  options.hosts = 4;
  options.fan_out = 2;
  EXPECT_THAT(StartRelays(options).status().ToString(), HasSubstr("WEFT_JOB_SECRET"));
  StoreRelayOptions relay;
  relay.up = server_->address();
  relay.listen = ":0";
  EXPECT_THAT(StoreRelay::Start(relay).status().ToString(), HasSubstr("unauthenticated clients"));
}

TEST_F(StoreRelayTest, TheFanOutIsTheSquareRootOfManyHosts) {
  EXPECT_EQ(DefaultFanOut(63), 0);
  EXPECT_EQ(DefaultFanOut(64), 8);
  EXPECT_EQ(DefaultFanOut(65), 9);
  EXPECT_EQ(DefaultFanOut(2048), 46);
}

TEST_F(StoreRelayTest, WhenTheRootIsGoneTheErrorNamesRelayAndRoot) {
  auto client = Connect(kPerHost);
  ASSERT_TRUE(client->Set("k", "v").ok());
  std::string address = server_->address();
  server_.reset();
  absl::Status status = client->Get("never", kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("relay launcher 1 on node1"), HasSubstr(address), HasSubstr("root")));
  EXPECT_EQ(client->Set("k", "v").code(), absl::StatusCode::kUnavailable);
}

TEST_F(StoreRelayTest, WhenTheRelayIsGoneTheErrorNamesIt) {
  auto client = Connect(0);
  ASSERT_TRUE(client->Set("k", "v").ok());
  std::string address = relays_[0]->address();
  relays_[0].reset();
  absl::Status status = client->Set("k", "w");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(address), HasSubstr("relay launcher 0 on node0")));
  EXPECT_EQ(Connect(kPerHost)->Get("k", kPatience).value(), "v");
}

TEST_F(StoreRelayTest, AReplacedHostFencesTheOldOne) {
  auto old = Connect(0);
  ASSERT_TRUE(old->Set("k", "old").ok());
  auto fresh = StartRelay(0, /*generation=*/1);
  std::swap(relays_[0], fresh);
  auto replacement = Connect(0, 1);
  ASSERT_TRUE(replacement->Set("k", "new").ok());
  absl::Status status = old->Set("k", "late");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 was replaced"));
  EXPECT_EQ(Connect(kPerHost)->Get("k", kPatience).value(), "new");
}

TEST_F(StoreRelayTest, AReplacedRankFencesTheOldOneUnderTheSameRelay) {
  auto old = Connect(1);
  auto neighbour = Connect(2);
  absl::Status waited;
  std::thread waits([&] { waited = old->Barrier("b", 1, kWorld, kPatience); });
  while (server_->statistics().waiting == 0) std::this_thread::yield();
  auto fresh = Connect(1, 1);
  EXPECT_EQ(fresh->Set("k", "new"), absl::OkStatus());
  waits.join();
  EXPECT_EQ(waited.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(old->Set("k", "late").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(neighbour->Set("n", "x").ok());
  EXPECT_EQ(neighbour->Get("k", kPatience).value(), "new");
}

}  // namespace
}  // namespace weft::collectives
