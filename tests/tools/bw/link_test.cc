// weft-bw link: its parts, and the program as its users run it.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"
#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include "tools/bw/link/check_pattern.h"
#include "tools/bw/link/command_line.h"
#include "tools/bw/link/flows.h"
#include "tools/bw/link/key.h"
#include "tools/bw/link/limit.h"
#include "tools/bw/link/steps.h"

namespace weft::link_bw {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr CollectiveKind kCollectives[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kBroadcast, CollectiveKind::kSendReceive};

std::vector<int64_t> SizesOf(const std::vector<ChannelPlan::Send>& sends) {
  std::vector<int64_t> sizes;
  sizes.reserve(sends.size());
  for (const ChannelPlan::Send& send : sends) sizes.push_back(send.bytes);
  return sizes;
}

// ---- Parts

TEST(Steps, WhatARankSendsIsWhatTheNextReceives) {
  Load load;
  load.root = 1;
  for (CollectiveKind collective : kCollectives) {
    load.collective = collective;
    for (int64_t bytes : {0LL, 8LL, 100'000LL, 5'000'000LL, 64LL << 20}) {
      constexpr int kRanks = 3;
      for (int rank = 0; rank < kRanks; ++rank) {
        const ChannelPlan mine = PlanChannel(load, Bytes(bytes), rank, kRanks);
        const ChannelPlan next = PlanChannel(load, Bytes(bytes), (rank + 1) % kRanks, kRanks);
        std::vector<int64_t> received;
        received.reserve(next.receives.size());
        for (const ChannelPlan::Receive& receive : next.receives) received.push_back(receive.bytes);
        EXPECT_EQ(SizesOf(mine.sends), received) << ToString(collective) << " of " << bytes;
      }
    }
  }
}

TEST(Steps, WhatIsPassedOnIsWhatCame) {
  Load load;
  for (CollectiveKind collective : kCollectives) {
    load.collective = collective;
    const ChannelPlan plan = PlanChannel(load, MiB(20), 1, 4);
    int64_t last = -1;
    for (const ChannelPlan::Send& send : plan.sends) {
      if (send.after < 0) continue;
      const ChannelPlan::Receive& receive = plan.receives.at(static_cast<size_t>(send.after));
      EXPECT_EQ(receive.bytes, send.bytes);
      EXPECT_TRUE(receive.passed_on);
      EXPECT_GT(send.after, last);  // in the order in which it comes
      last = send.after;
    }
    EXPECT_EQ(last >= 0, collective != CollectiveKind::kSendReceive);
  }
}

TEST(Steps, ARingMovesItsShareInSlicesOfTwoSteps) {
  Load load;
  load.channels = 2;
  constexpr int kRanks = 4;
  const ChannelPlan plan = PlanChannel(load, MiB(64), 0, kRanks);
  const std::vector<int64_t> sizes = SizesOf(plan.sends);
  // 2 (n - 1) / n of the buffer, half of it on each channel.
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), (64LL << 20) * 6 / 4 / 2);
  EXPECT_EQ(sizes[0], 1 << 20);  // two of eight steps of 4 MiB
  EXPECT_EQ(plan.in_flight, 4);
  load.collective = CollectiveKind::kSendReceive;
  const ChannelPlan direct = PlanChannel(load, MiB(64), 0, kRanks);
  EXPECT_EQ(direct.sends[0].bytes, 128 << 10);
  EXPECT_EQ(direct.in_flight, 8);
}

TEST(Flows, OfEveryPattern) {
  Load load;
  auto flows = [&load](Pattern pattern, int ranks) {
    load.pattern = pattern;
    return FlowsOf(load, ranks).value();
  };
  EXPECT_THAT(flows(Pattern::kOneWay, 4), ElementsAre(Flow{0, 2}, Flow{1, 3}));
  EXPECT_THAT(flows(Pattern::kBothWays, 2), ElementsAre(Flow{0, 1}, Flow{1, 0}));
  EXPECT_EQ(flows(Pattern::kAllPairs, 5).size(), 20U);
  load.root = 1;
  EXPECT_THAT(flows(Pattern::kManyToOne, 3), ElementsAre(Flow{0, 1}, Flow{2, 1}));
  EXPECT_THAT(flows(Pattern::kOneToMany, 3), ElementsAre(Flow{1, 0}, Flow{1, 2}));
  load.pattern = Pattern::kOneWay;
  EXPECT_THAT(std::string(FlowsOf(load, 3).status().message()), HasSubstr("even number"));
  EXPECT_THAT(std::string(FlowsOf(load, 1).status().message()), HasSubstr("nobody"));
  load.root = 7;
  EXPECT_THAT(std::string(FlowsOf(load, 4).status().message()), HasSubstr("--root 7"));
}

class LimitTest : public ::testing::Test {
 protected:
  LimitTest() {
    for (int rank = 0; rank < 2; ++rank) {
      RankUse use;
      use.rank = rank;
      use.host = "host";
      use.device = "eth0";
      use.busy = 0.5;
      use.core = 1;
      use.copy = 10e9;
      use.sent = use.received = 1e9;
      ranks_.push_back(use);
    }
    LaneUse lane;
    lane.from = 0;
    lane.to = 1;
    lane.name = "a -> b";
    lane.busy = 0.3;
    lanes_.push_back(lane);
  }
  std::string What() const { return FindLimit(ranks_, lanes_, 16).what; }
  std::string Sentence() const { return FindLimit(ranks_, lanes_, 16).sentence; }

  std::vector<RankUse> ranks_;
  std::vector<LaneUse> lanes_;
};

TEST_F(LimitTest, IsTheWindowWhereNothingIsBusy) {
  EXPECT_EQ(What(), "window");
  EXPECT_THAT(Sentence(), HasSubstr("16 messages"));
}

TEST_F(LimitTest, IsTheLinkWhereItsSpeedIsReached) {
  ranks_[1].link = 1.05e9;
  ranks_[1].busy = 1;  // spins
  EXPECT_EQ(What(), "link");
  EXPECT_THAT(Sentence(), HasSubstr("eth0 at rank 1 on host: 95 % of its 8.4 Gb/s"));
  ranks_[1].link = 0.5e9;  // what a virtual interface says, and does not keep to
  EXPECT_NE(What(), "link");
}

TEST_F(LimitTest, IsTheThreadThatIsBusy) {
  ranks_[1].busy = 0.97;
  EXPECT_EQ(What(), "thread");
  EXPECT_THAT(Sentence(), HasSubstr("rank 1"));
  ranks_[1].received = 6e9;
  EXPECT_EQ(What(), "copy");
  ranks_[1].core = 0.4;
  EXPECT_EQ(What(), "core");
  ranks_[1].sleeps = true;  // then a share of a core is no sign of anything
  EXPECT_EQ(What(), "copy");
}

TEST_F(LimitTest, IsWhatTheKernelWaitedFor) {
  lanes_[0].busy = 0.95;
  EXPECT_EQ(What(), "network");
  lanes_[0].buffer_limited = 0.7;
  EXPECT_EQ(What(), "buffer");
  lanes_[0].peer_limited = 0.8;
  EXPECT_EQ(What(), "peer");
  EXPECT_THAT(Sentence(), HasSubstr("a -> b"));
}

TEST(Words, SeeOneWrongByteAndAnotherMessage) {
  for (size_t bytes : {1U, 8U, 4099U}) {
    std::vector<std::byte> data(bytes);
    WritePattern(data.data(), bytes, 5);
    EXPECT_TRUE(HasPattern(data.data(), bytes, 5));
    EXPECT_FALSE(HasPattern(data.data(), bytes, 6));
    data[bytes / 2] ^= std::byte{1};
    EXPECT_FALSE(HasPattern(data.data(), bytes, 5));
  }
}

TEST(Load, IsTheSameBehindJson) {
  Load load;
  load.test = link_bw::Test::kSteps;
  load.pattern = Pattern::kManyToOne;
  load.sizes = {Bytes(3), MiB(1)};
  load.duration = absl::Milliseconds(250);
  load.collective = CollectiveKind::kBroadcast;
  load.one_buffer = true;
  EXPECT_EQ(Load::FromJson(load.ToJson()).value().ToJson(), load.ToJson());
  EXPECT_FALSE(Load::FromJson(json::object()).ok());
}

TEST(Load, OfAnotherRankKeepsTheBoundsOfTheCommandLine) {
  Load load;
  load.sizes = {Bytes(3)};
  const json good = load.ToJson();
  for (const auto& [name, value] : {std::pair<const char*, json>{"channels", 0},
                                    {"channels", 65},
                                    {"depth", 0},
                                    {"post_list", 0},
                                    {"percentile", 101},
                                    {"percentile", -1},
                                    {"seconds", 0},
                                    {"iterations", -1},
                                    {"root", -1},
                                    {"buffsize", 0},
                                    {"sizes", {-1}},
                                    {"sizes", {1LL << 40}}}) {
    json wrong = good;
    wrong[name] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(Load::FromJson(wrong).status())) << wrong;
  }
  EXPECT_TRUE(Load::FromJson(good).ok());
}

// ---- The program

Outcome Link(const std::string& arguments, const std::string& streams = "2>&1") {
  return RunProgram("weft-bw link " + arguments, streams);
}

json JsonOf(const std::string& arguments) {
  const Outcome outcome = Link(arguments + " --json -", "2>/dev/null");
  EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
  return json::parse(outcome.output, nullptr, false);
}

TEST(WeftBwLink, CarriesEveryByteOfEverySize) {
  for (const char* transport : {"tcp", "shm"}) {
    const json result = JsonOf(std::string("--ranks 2 -b -V -s 0,1,100,70000,3M -n 30 -t 4 "
                                           "--transport ") +
                               transport);
    ASSERT_EQ(result["rows"].size(), 5U);
    EXPECT_EQ(result["wrong_messages"], 0);
    for (const json& row : result["rows"]) {
      ASSERT_EQ(row["flows"].size(), 2U);
      for (const json& flow : row["flows"]) EXPECT_EQ(flow["messages"], 30) << row;
    }
  }
}

// 16 messages of 64 MiB, a GiB if each had memory of its own, in less than 600 MiB.
TEST(WeftBwLink, OneBufferHoldsAllMessagesUnderWay) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  rlimit less = before;
  less.rlim_cur = rlim_t{600} << 20;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &less), 0);
  const Outcome own = Link("--ranks 2 -s 1G -t 2 -n 2");
  const json result = JsonOf("--ranks 2 -s 64M -t 16 -n 16 --one-buffer");
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_NE(own.status, 0) << "the limit is none";
  EXPECT_EQ(result["rows"][0]["flows"][0]["messages"], 16);
}

TEST(WeftBwLink, TellsOfEverySocketWhatItCarried) {
  const json result = JsonOf("--ranks 2 -s 1M -n 50 -q 3");
  const json& lanes = result["rows"][0]["lanes"];
  ASSERT_EQ(lanes.size(), 3U);
  int64_t bytes = 0;
  for (const json& lane : lanes) {
    EXPECT_GT(lane["source_port"], 0);
    EXPECT_GE(lane["retransmissions"], 0);
    EXPECT_GE(lane["rtt_p99_us"], lane["rtt_p50_us"]);
    EXPECT_GT(lane["bytes"], 1 << 20);  // all sockets have their share
    bytes += lane["bytes"].get<int64_t>();
  }
  EXPECT_GT(bytes, 20 << 20);  // the window at the sender is a little less than 50 messages
  EXPECT_FALSE(result["rows"][0]["limit"].get<std::string>().empty());
}

TEST(WeftBwLink, TellsOfEveryPathWhatItCarried) {
  const json result = JsonOf("--ranks 2 -s 1M -n 50 --transport multipath --set multipath.paths=4");
  const json& lanes = result["rows"][0]["lanes"];
  ASSERT_EQ(lanes.size(), 4U);
  int64_t bytes = 0;
  std::set<int> ports;
  for (const json& lane : lanes) {
    ports.insert(lane["source_port"].get<int>());
    EXPECT_GE(lane["retransmissions"], 0);
    EXPECT_GT(lane["rtt_p50_us"], 0);
    EXPECT_GE(lane["rtt_p99_us"], lane["rtt_p50_us"]);
    EXPECT_GT(lane["bytes"], 0);
    bytes += lane["bytes"].get<int64_t>();
  }
  EXPECT_EQ(ports.size(), 4U);
  EXPECT_GT(bytes, 20 << 20);
}

TEST(WeftBwLink, EveryPatternEnds) {
  EXPECT_EQ(JsonOf("--ranks 3 --pattern many-to-one --root 2 -n 20")["rows"][0]["flows"].size(),
            2U);
  const json pairs = JsonOf("--ranks 3 --pattern all-pairs --in-turn --test lat -n 20");
  EXPECT_EQ(pairs["rows"].size(), 6U);
  for (const json& row : pairs["rows"]) {
    ASSERT_EQ(row["flows"].size(), 1U);
    const json& flow = row["flows"][0];
    EXPECT_GE(flow["messages"], 20);
    EXPECT_LE(flow["min_us"], flow["typical_us"]);
    EXPECT_LE(flow["typical_us"], flow["p99_us"]);
  }
  EXPECT_GT(JsonOf("--ranks 2 --test rate -n 500 -e -l 8")["rows"][0]["messages_per_second"], 0);
}

// Rank 2 has nothing to do for longer than a wait at the store may take: with its warm-up, a turn
// takes 1.2 of -D. All ranks are to start within one such wait.
TEST(WeftBwLink, RanksWhoseTurnComesLaterWaitUntilThen) {
  const json result =
      JsonOf("--ranks 3 --pattern one-to-many --in-turn -s 4K -D 3400ms --set store.timeout=4s");
  EXPECT_EQ(result["rows"].size(), 2U);
}

TEST(WeftBwLink, ReplaysEveryCollective) {
  for (CollectiveKind collective : kCollectives) {
    const json result = JsonOf(
        "--ranks 3 --test steps -s 1000,3M --buffsize 256K -n 3 "
        "--collective " +
        std::string(ToString(collective)));
    ASSERT_EQ(result["rows"].size(), 2U);
    for (const json& row : result["rows"]) {
      EXPECT_EQ(row["operations"], 3);
      EXPECT_GT(row["busbw_GBps"], 0);
    }
  }
}

TEST(WeftBwLink, LimitsAreAnExitStatus) {
  EXPECT_EQ(Link("--ranks 2 -n 20 --min-gbps 0.000001").status, 0);
  const Outcome slow = Link("--ranks 2 -n 20 --min-gbps 1000000");
  EXPECT_EQ(slow.status, 3);
  EXPECT_THAT(slow.output, HasSubstr("below --min-gbps 1e+06"));
  const Outcome late = Link("--ranks 2 --test lat -n 20 --max-usec 0.0001 -R 99");
  EXPECT_EQ(late.status, 3);
  EXPECT_THAT(late.output, HasSubstr("above --max-usec"));
}

// With a round trip that takes longer than all of -D.
TEST(WeftBwLink, ALatencyThatNothingWasMeasuredOfKeepsNoLimit) {
  const Outcome late =
      Link("--ranks 2 --test lat -s 64M -D 10ms --max-usec 1 --json -", "2>/dev/null");
  EXPECT_EQ(late.status, 3);
  const json flow = json::parse(late.output)["rows"][0]["flows"][0];
  EXPECT_GE(flow["messages"], 1) << flow;
  EXPECT_GT(flow["typical_us"], 1) << flow;
}

// Rank 0, which is this test, meets rank 1 at the store and then never dials it, as a host that a
// firewall keeps from the other's ports.
TEST(WeftBwLink, ARankThatNobodyDialsEndsAndNamesWhomItWaitsFor) {
  collectives::StoreServerOptions options;
  options.core.secret = net::NewJobSecret();
  auto server = collectives::StoreServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  collectives::JobEnvironment self;
  self.world_size = 2;
  self.store = (*server)->address();
  self.secret = options.core.secret;
  std::thread rank_zero([&] {
    auto store = collectives::StoreFromEnvironment(self, absl::Seconds(60));
    ASSERT_TRUE(store.ok()) << store.status();
    for (const auto& [turn, said] :
         {std::pair<int, std::string>{0, Load().ToJson().dump()}, {1, "127.0.0.1:1"}}) {
      auto all = store->store->AllGather(absl::StrCat("weft-bw-link/", turn), 0, 2, said,
                                         absl::Seconds(60));
      EXPECT_TRUE(all.ok()) << all.status();
    }
  });
  const Outcome waits = Shell(absl::StrCat(
      "env WEFT_JOB_SECRET=", net::SecretToHex(self.secret), " WEFT_STORE=", self.store,
      " RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 ",
      "WEFT_TCP_INTERFACE==lo $WEFT_BIN/weft-bw link ", "--set transport.connect_timeout=200ms"));
  rank_zero.join();
  EXPECT_EQ(waits.status, 1);
  EXPECT_THAT(waits.output, HasSubstr("rank 0 has not connected to this one, at 127.0.0.1:"));
}

// Writes a key's file for this user alone.
void WriteKey(ScratchFolder& folder, const std::string& name, const std::string& key) {
  folder.Write(name, key);
  std::filesystem::permissions(folder / name, std::filesystem::perms(0600));
}

TEST(WeftBwLink, AServerDoesWhatItsClientAsks) {
  ScratchFolder folder;
  WriteKey(folder, "key", "correct horse battery\n");
  // A port that somebody else may take in between: then the next one.
  for (int port = 20'000 + getpid() % 20'000, tries = 0; tries < 5; ++port, ++tries) {
    const std::string both = absl::StrCat(" -p ", port, " --key @", folder / "key");
    const std::string command = absl::StrCat(
        "W=$WEFT_BIN/weft-bw; export WEFT_TCP_INTERFACE==lo WEFT_STORE_TIMEOUT=60s; $W link", both,
        " >/dev/null & $W link 127.0.0.1 --test lat -s 16 -n 25 --json -", both, "; wait");
    const Outcome outcome = Shell(command, "2>/dev/null");
    const json result = json::parse(outcome.output, nullptr, false);
    if (result.is_discarded()) continue;
    EXPECT_EQ(result["rows"][0]["bytes"], 16);
    EXPECT_EQ(result["load"]["test"], "lat");
    return;
  }
  FAIL() << "no client met its server";
}

// The client's command as the server prints it: the key is in its environment.
TEST(WeftBwLink, AServerDrawsAKeyAndSaysHowToBeItsClient) {
  for (int port = 20'000 + getpid() % 20'000, tries = 0; tries < 5; ++port, ++tries) {
    ScratchFolder folder;
    const Outcome outcome = Shell(
        absl::StrCat(
            "export PATH=$WEFT_BIN:$PATH WEFT_TCP_INTERFACE==lo WEFT_STORE_TIMEOUT=60s; weft-bw "
            "link -p ",
            port, " >/dev/null 2>", folder / "said", " & server=$!; ", "until grep -q 'client: ' ",
            folder / "said", " || ! kill -0 $server; do sleep 0.01; done; ",
            "grep -q 'weft-bw link 127.0.0.1 -p' ", folder / "said", " && ",
            "eval \"$(sed -n 's/.*a client: *//p' ", folder / "said", ") -n 5 --json -\"; wait"),
        "2>/dev/null");
    if (json::parse(outcome.output, nullptr, false).is_discarded()) continue;
    return;
  }
  FAIL() << "no client met its server";
}

TEST(WeftBwLink, KeysThatCanBeSeenOrGuessedAreRefused) {
  ScratchFolder folder;
  WriteKey(folder, "short", "hunter2\n");
  WriteKey(folder, "same", std::string(64, '0'));
  WriteKey(folder, "open", std::string(64, 'a'));
  std::filesystem::permissions(folder / "open", std::filesystem::perms(0644));
  struct Wrong {
    std::string key;
    const char* sentence;
  };
  for (const Wrong& wrong :
       {Wrong{"hunter2", "--key @FILE"}, Wrong{"@" + (folder / "short"), "at least 16 characters"},
        Wrong{"@" + (folder / "same"), "can be guessed"},
        Wrong{"@" + (folder / "open"), "chmod 600"},
        Wrong{"@" + (folder / "none"), "No such file"}}) {
    const Outcome outcome = Link("127.0.0.1 --key " + wrong.key);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(wrong.sentence));
    if (wrong.key[0] == '@') {
      EXPECT_THAT(outcome.output, HasSubstr(wrong.key));
    }
    EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("hunter2")));
  }
  const Outcome none = Shell("env -u WEFT_JOB_SECRET $WEFT_BIN/weft-bw link 127.0.0.1");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.output, HasSubstr("needs its server's key"));
  EXPECT_NE(SecretFromPassphrase("correct horse battery").value(),
            SecretFromPassphrase("correct horse batterz").value());
}

TEST(WeftBwLink, WrongUsageSaysWhatWouldBeRight) {
  struct Wrong {
    const char* arguments;
    const char* sentence;
  };
  for (const Wrong& wrong :
       {Wrong{"--ranks 2 --pattern all-pair", "nearest: all-pairs"},
        Wrong{"--ranks 3", "even number of ranks"},
        Wrong{"--ranks 2 --transport shm -q 2", "means nothing to the shm transport"},
        Wrong{"--ranks 2 -x 3", "means nothing to the tcp transport"},
        Wrong{"--ranks 2 -D never", "no time"}, Wrong{"--ranks 2 -D inf", "from 10ms to 24h"},
        Wrong{"--ranks 2 -R nan", "'nan' is no number from 0 to 100"},
        Wrong{"--ranks 2 --min-gbps nan", "'nan' is no number"},
        Wrong{"--ranks 2 -s 2G", "at most 1GiB"}, Wrong{"--ranks 2 -a -s 4", "exclude each other"},
        Wrong{"--ranks 2 -V --one-buffer", "messages overwrite one another"},
        Wrong{"--ranks 2 --test lat --one-buffer", "--one-buffer is for --test bw and rate"}}) {
    const Outcome outcome = Link(wrong.arguments);
    EXPECT_EQ(outcome.status, 2) << wrong.arguments;
    EXPECT_THAT(outcome.output, HasSubstr(wrong.sentence));
  }
}

}  // namespace
}  // namespace weft::link_bw
