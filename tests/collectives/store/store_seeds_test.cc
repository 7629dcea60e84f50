// Server, relay and clients without sockets over a network that cuts, delays and breaks
// connections, and with a server that is killed and reads its journal again: nothing is lost,
// nothing is done twice. Then the network heals, and everything must end.
//
// Every draw comes from the seed: a failure is reproduced by WEFT_SEED=N alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/protocol/store_exchange.h"
#include "collectives/store/relay/store_relay_table.h"
#include "collectives/store/server/store_core.h"
#include "collectives/store/server/store_journal.h"

namespace weft::collectives {
namespace {

constexpr int kDirect = 2;   // ranks 0 and 1
constexpr int kRelayed = 3;  // ranks 2 to 4
constexpr int kWorld = kDirect + kRelayed;
constexpr int kRounds = 3;
constexpr int kSteps = 7;  // of a round
constexpr int kStepsOfFaults = 1500;
constexpr int kStepsMax = 20000;
// Bytes of a large value: with these a relay takes the answer of an all-gather piece by piece.
constexpr size_t kLargeBytes = 4000;
static_assert(kLargeBytes * kWorld > StoreFrameReader::kStreamedBytes);

StoreHello HelloOf(const std::string& name, int rank, int ranks) {
  StoreHello hello;
  hello.id = NewStoreId();
  hello.name = name;
  hello.rank = rank;
  hello.ranks = ranks;
  return hello;
}

// A connection: what is on its way in both directions.
struct Pipe {
  StoreClientCore* client;
  bool local;
  bool to_root;                 // else to the relay
  StoreConnections::Id id = 0;  // 0: broken
  std::string up, down;
};

class Network {
 public:
  explicit Network(uint64_t seed) : random_(seed) {
    secret_[0] = 1;
    large_ = random_.Below(2) == 0;
    Restart();
    StoreRelayTableOptions table;
    table.name = "relay";
    table.world = kWorld;
    table.expected = kRelayed;
    table.files = !large_;  // pipes carry no descriptors
    relay_up_ = std::make_unique<StoreClientCore>(secret_, HelloOf("relay", kDirect, kRelayed));
    relay_table_ = std::make_unique<StoreRelayTable>(relay_up_.get(), table);
    relay_ = std::make_unique<StoreCore>(StoreCoreOptions(), relay_table_.get());
    for (int rank = 0; rank < kWorld; ++rank) {
      clients_.push_back(std::make_unique<StoreClientCore>(
          secret_, HelloOf(absl::StrCat("rank ", rank), rank, 1)));
      bool direct = rank < kDirect;
      pipes_.push_back({clients_.back().get(), !direct, direct, 0, "", ""});
    }
    pipes_.push_back({relay_up_.get(), false, true, 0, "", ""});
    place_.resize(kWorld, 0);
    waiting_.resize(kWorld, 0);
  }

  void Run() {
    int step = 0;
    for (; step < kStepsMax && !Finished() && !testing::Test::HasFailure(); ++step) {
      now_ += absl::Milliseconds(1);
      Step(step < kStepsOfFaults);
    }
    ASSERT_TRUE(Finished()) << "not through after " << step << " steps";
    Check();
  }

 private:
  bool Finished() const {
    return std::all_of(place_.begin(), place_.end(), [](int p) { return p == kSteps * kRounds; });
  }

  // ---- One thing happens

  void Step(bool faults) {
    for (int rank = 0; rank < kWorld; ++rank) Act(rank);
    Pipe& pipe = pipes_[random_.Below(pipes_.size())];
    uint64_t what = random_.Below(100);
    if (faults && what < 6) {
      Break(pipe);
    } else if (faults && what < 7 && random_.Below(8) == 0) {
      for (Pipe& each : pipes_) {
        if (each.to_root) Break(each);
      }
      Restart();
    } else if (pipe.id == 0) {
      Connect(pipe);
    } else {
      Move(pipe);
    }
    Settle();
  }

  StoreCore& ServerOf(const Pipe& pipe) { return pipe.to_root ? *root_ : *relay_; }

  void Connect(Pipe& pipe) {
    pipe.id = next_id_++;
    ServerOf(pipe).connections().Open(pipe.id, "peer", now_, pipe.local);
    pipe.client->Connected(pipe.local);
  }

  void Break(Pipe& pipe) {
    if (pipe.id == 0) return;
    // Some of what was on its way still arrives.
    if (random_.Below(2) == 0) Move(pipe);
    if (pipe.id == 0) return;
    ServerOf(pipe).connections().Close(pipe.id, now_);
    pipe.client->Lost();
    pipe.id = 0;
    pipe.up.clear();
    pipe.down.clear();
  }

  void Move(Pipe& pipe) {
    std::vector<iovec> parts(8);
    while (pipe.client->HasOutput()) {
      size_t count = pipe.client->Gather(parts.data(), parts.size());
      size_t bytes = 0;
      for (size_t i = 0; i < count; ++i) {
        pipe.up.append(static_cast<char*>(parts[i].iov_base), parts[i].iov_len);
        bytes += parts[i].iov_len;
      }
      pipe.client->Wrote(bytes);
    }
    bool up = random_.Below(2) == 0;
    std::string& bytes = up ? pipe.up : pipe.down;
    if (bytes.empty()) return;
    size_t count = 1 + random_.Below(bytes.size());
    std::string moved = bytes.substr(0, count);
    bytes.erase(0, count);
    if (up) {
      ServerOf(pipe).connections().Receive(pipe.id, moved, now_);
    } else {
      absl::Status status = pipe.client->Receive(moved);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  // What the cores have to say goes into the pipes; the journal is written first.
  void Settle() {
    root_->Advance(now_);
    journal_ += root_->TakeJournal();
    relay_->Advance(now_);
    for (StoreCore* core : {root_.get(), relay_.get()}) {
      for (StoreConnections::Output& output : core->connections().TakeOutput()) {
        for (Pipe& pipe : pipes_) {
          if (pipe.id != output.connection) continue;
          pipe.down += std::string(output.frame.head.view());
          if (output.frame.body) pipe.down += *output.frame.body;
        }
        core->connections().Sent(output.connection, output.frame.size(), now_);
      }
      for (const auto& closing : core->connections().TakeClosings()) {
        for (Pipe& pipe : pipes_) {
          if (pipe.id == closing.connection) Break(pipe);
        }
        core->connections().Close(closing.connection, now_);
      }
    }
  }

  void Restart() {
    StoreCoreOptions options;
    options.secret = secret_;
    options.journal = true;
    // Every other time from a snapshot of what was there.
    if (root_ != nullptr && random_.Below(2) == 0) journal_ = root_->Snapshot();
    root_ = std::make_unique<StoreCore>(options);
    if (journal_.empty()) return;
    auto read = ReadRecords(journal_,
                            [&](const StoreRecord& record) { return root_->Replay(record, now_); });
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, journal_.size());
    (void)root_->TakeJournal();
    (void)root_->connections().TakeOutput();
  }

  // ---- The ranks' script

  void Act(int rank) {
    auto index = static_cast<size_t>(rank);
    StoreClientCore& client = *clients_[index];
    for (StoreClientCore::Answer& answer : client.TakeAnswers()) {
      ASSERT_EQ(answer.id, waiting_[index]) << "rank " << rank;
      ASSERT_TRUE(answer.result.status.ok()) << "rank " << rank << ": " << answer.result.status;
      Judge(rank, answer.result);
      waiting_[index] = 0;
      ++place_[index];
    }
    if (waiting_[index] != 0 || place_[index] == kSteps * kRounds) return;
    waiting_[index] = client.Call(Next(rank));
  }

  StoreRequest Next(int rank) const {
    int place = place_[static_cast<size_t>(rank)];
    int round = place / kSteps;
    StoreRequest request;
    request.timeout = absl::Hours(1);
    switch (place % kSteps) {
      case 0:
        request.op = StoreOp::kAdd;
        request.keys = {"sum"};
        request.number = 1 + rank;
        break;
      case 1:
        request.op = StoreOp::kAppend;
        request.keys = {"log"};
        request.values = {absl::StrCat("<", rank, ".", round, ">")};
        break;
      case 2:
        request.op = StoreOp::kBarrier;
        request.keys = {absl::StrCat("barrier ", round)};
        break;
      case 3:
        request.op = StoreOp::kAllGather;
        request.keys = {absl::StrCat("gather ", round)};
        request.values = {Gathered(rank, round)};
        break;
      case 4:
        request.op = StoreOp::kExchange;
        request.keys = {absl::StrCat("exchange ", round)};
        request.values = {absl::StrCat("value ", rank, ".", round), WantedBy(rank, round).Encode()};
        break;
      case 5:
        request.op = StoreOp::kGather;
        request.keys = {absl::StrCat("to one ", round)};
        request.values = {absl::StrCat("value ", rank, ".", round)};
        request.number = RootOf(round);
        break;
      default:
        request.op = StoreOp::kGet;
        request.keys = {"log"};
        break;
    }
    if (IsGroup(request.op)) {
      request.rank = rank;
      request.size = kWorld;
    }
    return request;
  }

  std::string Gathered(int rank, int round) const {
    return absl::StrCat("value ", rank, ".", round, std::string(large_ ? kLargeBytes : 0, 'v'));
  }

  // One with a connection of its own, and one behind the relay.
  static int RootOf(int round) { return round % 2 == 0 ? 0 : kWorld - 1; }

  // One other, and in some rounds everybody.
  static RankSet WantedBy(int rank, int round) {
    return round == 1 ? RankSet::Below(kWorld) : RankSet({(rank + round + 1) % kWorld});
  }

  void Judge(int rank, const StoreResult& result) {
    int place = place_[static_cast<size_t>(rank)];
    int round = place / kSteps;
    if (place % kSteps == 2) {
      for (int other : place_) EXPECT_GE(other, place) << "a barrier let a rank through";
    } else if (place % kSteps == 3) {
      ASSERT_EQ(result.values.size(), static_cast<size_t>(kWorld));
      for (int i = 0; i < kWorld; ++i) {
        EXPECT_EQ(result.values[static_cast<size_t>(i)], Gathered(i, round));
      }
    } else if (place % kSteps == 4) {
      RankSet wanted = WantedBy(rank, round);
      auto values = PickExchanged({result.values.begin(), result.values.end()}, kWorld, wanted);
      ASSERT_TRUE(values.ok()) << values.status();
      std::vector<int> ranks = wanted.ranks();
      for (size_t i = 0; i < ranks.size(); ++i) {
        EXPECT_EQ((*values)[i], absl::StrCat("value ", ranks[i], ".", round));
      }
    } else if (place % kSteps == 5) {
      ASSERT_EQ(result.values.size(), rank == RootOf(round) ? size_t{kWorld} : 0);
      for (size_t i = 0; i < result.values.size(); ++i) {
        EXPECT_EQ(result.values[i], absl::StrCat("value ", i, ".", round));
      }
    } else if (place % kSteps == 6) {
      log_ = std::max(log_, result.values.at(0),
                      [](const auto& a, const auto& b) { return a.size() < b.size(); });
    }
  }

  // Everything exactly once.
  void Check() {
    for (int rank = 0; rank < kWorld; ++rank) {
      for (int round = 0; round < kRounds; ++round) {
        std::string token = absl::StrCat("<", rank, ".", round, ">");
        size_t first = log_.find(token);
        ASSERT_NE(first, std::string::npos) << token << " is lost in " << log_;
        EXPECT_EQ(log_.find(token, first + 1), std::string::npos) << token << " came twice";
      }
    }
    StoreClientCore reader(secret_, HelloOf("reader", -1, 0));
    pipes_.push_back({&reader, false, true, 0, "", ""});
    StoreRequest request;
    request.op = StoreOp::kAdd;
    request.keys = {"sum"};
    reader.Call(StoreRequest(request));
    Connect(pipes_.back());
    std::vector<StoreClientCore::Answer> answers;
    for (int i = 0; i < 1000 && answers.empty(); ++i) {
      Settle();
      Move(pipes_.back());
      answers = reader.TakeAnswers();
    }
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].result.number, kRounds * kWorld * (kWorld + 1) / 2);
    EXPECT_EQ(root_->waiting(), 0);
  }

  Random random_;
  bool large_ = false;  // values of the all-gathers
  net::JobSecret secret_{};
  absl::Time now_ = absl::UnixEpoch();
  std::string journal_;
  std::unique_ptr<StoreCore> root_;
  std::unique_ptr<StoreClientCore> relay_up_;
  std::unique_ptr<StoreRelayTable> relay_table_;
  std::unique_ptr<StoreCore> relay_;
  std::vector<std::unique_ptr<StoreClientCore>> clients_;
  std::vector<Pipe> pipes_;
  StoreConnections::Id next_id_ = 1;
  std::vector<int> place_;  // how many operations of each rank are done
  std::vector<uint64_t> waiting_;
  std::string log_;
};

TEST(StoreSeedsTest, NothingIsLostOrDoneTwice) {
  uint64_t first = 1;
  uint64_t last = 1000;
  if (const char* seed = std::getenv("WEFT_SEED"); seed != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(seed, &first));
    last = first;
  }
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(absl::StrCat("WEFT_SEED=", seed));
    Network network(seed);
    network.Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weft::collectives
