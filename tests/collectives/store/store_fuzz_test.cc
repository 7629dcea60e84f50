// Whatever bytes a store's server, relay or client gets, and whatever its journal holds, it answers
// or refuses, in bounded memory, and nothing is left over once everybody has gone. A fixed number
// of seeded inputs; WEFT_FUZZ_SECONDS=600 goes on for so long, and prints how many there were.
// WEFT_FUZZ_SEED begins elsewhere; a failure names the seed that repeats it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/protocol/store_exchange.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/relay/store_relay_table.h"
#include "collectives/store/server/store_core.h"
#include "collectives/store/server/store_journal.h"
#include "tests/fuzz_budget.h"
#include "tests/heap_count.h"

namespace weft::collectives {
namespace {

constexpr Bytes kScratch = KiB(512);
constexpr uint64_t kConnections = 6;

StoreHello DrawHello(Random& random) {
  StoreHello hello;
  hello.id = std::string(kStoreIdBytes, static_cast<char>('a' + random.Below(5)));
  hello.name = "fuzz";
  hello.job = random.Below(4) == 0 ? "other" : "job";
  hello.rank = static_cast<int32_t>(random.Below(4)) - 1;
  hello.ranks = hello.rank < 0 ? 0 : 1 + static_cast<int32_t>(random.Below(3));
  hello.generation = static_cast<int32_t>(random.Below(3));
  if (random.Below(4) == 0) {  // of a large job, and others' clients
    hello.id = std::string(kStoreIdBytes, static_cast<char>(random()));
    hello.name = std::string(random.Below(160), 'n');
    hello.job = absl::StrCat("job ", random.Below(50));
    hello.rank = static_cast<int32_t>(random.Below(kStoreRanksMax));
    hello.ranks = static_cast<int32_t>(random.Below(kStoreRanksMax + 2 - hello.rank));
  }
  return hello;
}

RankSet DrawRanks(Random& random) {
  std::vector<int> ranks;
  for (uint64_t i = 0, count = random.Below(4); i < count; ++i) {
    ranks.push_back(static_cast<int>(random.Below(5)));
  }
  return RankSet(ranks);
}

StoreRequest DrawRequest(Random& random) {
  auto key = [&] { return std::to_string(random.Below(4)); };
  StoreRequest request;
  request.op = static_cast<StoreOp>(1 + random.Below(static_cast<uint64_t>(kStoreOpLast)));
  auto size = static_cast<int32_t>(random.Below(5));
  if (request.op == StoreOp::kGroup && random.Below(4) != 0) {
    StoreArrivals arrivals;
    arrivals.op = std::array{StoreOp::kBarrier, StoreOp::kAllGather, StoreOp::kGather,
                             StoreOp::kExchange}[static_cast<size_t>(random.Below(4))];
    arrivals.wanted = DrawRanks(random);
    arrivals.root = static_cast<int32_t>(random.Below(4));
    for (uint64_t i = 0, count = 1 + random.Below(3); i < count; ++i) {
      arrivals.ranks.push_back(static_cast<int32_t>(random.Below(4)));
      if (arrivals.op != StoreOp::kBarrier) arrivals.values.emplace_back(random.Below(64), 'g');
    }
    request = EncodeArrivals(key(), size, arrivals);
  } else {
    // Mostly of the right shape.
    bool many = request.op == StoreOp::kMultiGet || request.op == StoreOp::kWait ||
                request.op == StoreOp::kCheck || request.op == StoreOp::kMultiSet;
    uint64_t keys = many ? 1 + random.Below(3) : 1;
    if (request.op == StoreOp::kKeyCount || request.op == StoreOp::kGoodbye) keys = 0;
    uint64_t values = 0;
    if (request.op == StoreOp::kSet || request.op == StoreOp::kAppend ||
        request.op == StoreOp::kAllGather || request.op == StoreOp::kGather) {
      values = 1;
    } else if (request.op == StoreOp::kCompareSet || request.op == StoreOp::kExchange) {
      values = 2;
    } else if (request.op == StoreOp::kMultiSet) {
      values = keys;
    }
    if (random.Below(16) == 0) keys = random.Below(4);
    if (random.Below(16) == 0) values = random.Below(4);
    if (many && random.Below(4) == 0) {  // none, or many empty ones
      keys = random.Below(2) * random.Below(3000);
      if (request.op == StoreOp::kMultiSet) values = keys;
    }
    const bool empty = keys > 4;
    for (uint64_t i = 0; i < keys; ++i) request.keys.push_back(empty ? "" : key());
    for (uint64_t i = 0; i < values; ++i) {
      if (empty) request.values.emplace_back();
      if (empty) continue;
      request.values.emplace_back(random.Below(64) == 0 ? random.Below(200000) : random.Below(64),
                                  random.Below(3) == 0 ? '1' : 'v');
    }
    if (request.op == StoreOp::kExchange && values == 2 && random.Below(8) != 0) {
      request.values[1] = DrawRanks(random).Encode();
    }
    if (request.op == StoreOp::kHello || request.op == StoreOp::kAnnounce) {
      request.keys = {EncodeHello(DrawHello(random))};
    }
    request.number = random.Below(4) == 0 ? static_cast<int64_t>(random())
                                          : static_cast<int64_t>(random.Below(6)) - 1;
    request.rank = static_cast<int32_t>(random.Below(5));
    request.size = random.Below(16) == 0 ? static_cast<int32_t>(random.Below(1 << 14)) : size;
  }
  request.id = random.Below(41);
  request.acknowledged = random.Below(3) == 0 ? random.Below(40) : 0;
  request.timeout = absl::Milliseconds(static_cast<int64_t>(random.Below(4) * 700));
  return request;
}

void Mutate(std::string& bytes, Random& random) {
  if (bytes.empty() || random.Below(5) != 0) return;
  switch (random.Below(4)) {
    case 0:
      bytes[random.Below(bytes.size())] = static_cast<char>(random());
      break;
    case 1:
      bytes.resize(random.Below(bytes.size()));
      break;
    case 2:
      bytes += bytes;
      break;
    default:
      bytes.insert(random.Below(bytes.size()), std::string(1 + random.Below(8), '\xff'));
  }
}

// A server's core whose clients are fuzzed.
class Served {
 public:
  explicit Served(StoreCore& core) : core_(core) {}

  void Step(Random& random, absl::Time now) {
    StoreConnections::Id& id = places_[random.Below(kConnections)];
    if (open_.count(id) == 0) {
      // What is left of the one before must not be taken for its own: as servers do, never twice.
      id = ++last_;
      bool local = random.Below(8) != 0;  // the others never get through their handshake
      core_.connections().Open(id, "fuzz", now, local);
      open_[id] = 0;
      if (local) {
        StoreRequest hello;
        hello.op = StoreOp::kHello;
        hello.keys = {EncodeHello(DrawHello(random))};
        Send(id, EncodeRequest(hello), random, now);
      }
    } else if (random.Below(24) == 0) {
      Close(id, now);
    } else {
      Send(id, EncodeRequest(DrawRequest(random)), random, now);
    }
    core_.Advance(now);
    Drain(random, now);
    ASSERT_LE(core_.memory().count(), (core_.memory_limit() + MiB(1)).count());
    ASSERT_GE(core_.memory().count(), 0);
  }

  // `before`: of the heap, without the core. `beside`: what others have there.
  void CheckHeap(int64_t before, const std::string& beside) const {
    const int64_t heap = heap_bytes - before - HeapBytes(beside).count();
    // Beside what is charged: what is kept to be used again.
    ASSERT_LE(heap, core_.memory().count() + kScratch.count());
  }

  void CloseAll(absl::Time now) {
    for (StoreConnections::Id id : places_) Close(id, now);
  }

 private:
  void Send(StoreConnections::Id id, std::string bytes, Random& random, absl::Time now) {
    Mutate(bytes, random);
    size_t cut = random.Below(4) == 0 ? random.Below(bytes.size() + 1) : bytes.size();
    core_.connections().Receive(id, absl::string_view(bytes).substr(0, cut), now);
    core_.connections().Receive(id, absl::string_view(bytes).substr(cut), now);
  }

  void Close(StoreConnections::Id id, absl::Time now) {
    core_.connections().Close(id, now);
    open_.erase(id);
  }

  void Drain(Random& random, absl::Time now) {
    for (const auto& output : core_.connections().TakeOutput()) {
      if (auto found = open_.find(output.connection); found != open_.end()) {
        found->second += output.frame.size();
      }
    }
    // Some read slowly.
    for (auto& [id, backlog] : open_) {
      if (backlog == 0 || random.Below(3) == 0) continue;
      core_.connections().Sent(id, std::exchange(backlog, 0), now);
    }
    for (const auto& closing : core_.connections().TakeClosings()) Close(closing.connection, now);
  }

  StoreCore& core_;
  std::array<StoreConnections::Id, kConnections> places_{};
  StoreConnections::Id last_ = 0;
  std::map<StoreConnections::Id, size_t> open_;  // bytes not yet read
};

StoreCoreOptions CoreOptions() {
  StoreCoreOptions options;
  options.memory_limit = MiB(1);
  options.output_pause = KiB(64);
  options.output_limit = KiB(512);
  options.session_limit = KiB(128);
  return options;
}

void FuzzServer(Random& random) {
  StoreCoreOptions options = CoreOptions();
  options.journal = random.Below(2) == 0;
  if (random.Below(4) == 0) {  // mostly full
    options.memory_limit = KiB(16 + static_cast<int64_t>(random.Below(48)));
  }
  const int64_t heap = heap_bytes;
  StoreCore core(options);
  Served served(core);
  absl::Time now = absl::UnixEpoch();
  std::string journal;
  for (int step = 0; step < 120; ++step) {
    served.Step(random, now);
    if (testing::Test::HasFatalFailure()) return;
    journal += core.TakeJournal();
    served.CheckHeap(heap, journal);
    if (testing::Test::HasFatalFailure()) return;
    if (random.Below(16) == 0) now += absl::Milliseconds(static_cast<int64_t>(random.Below(9000)));
  }
  if (options.journal) {
    // Whole, it leads to the same keys; damaged, to an error or to some state.
    StoreCore again(options);
    auto read =
        ReadRecords(journal, [&](const StoreRecord& record) { return again.Replay(record, now); });
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(again.keys(), core.keys());
    std::string damaged = again.Snapshot();
    Mutate(damaged, random);
    StoreCore third(options);
    (void)ReadRecords(damaged, [&](const StoreRecord& r) { return third.Replay(r, now); });
    (void)third.Snapshot();
  }
  served.CloseAll(now);
  core.Advance(now + absl::Minutes(5));
  ASSERT_EQ(core.connections().size(), 0);
  ASSERT_EQ(core.sessions(), 0);
  ASSERT_EQ(core.waiting(), 0);
  ASSERT_EQ(core.deadline(), absl::InfiniteFuture());
  served.CheckHeap(heap, journal);
}

// What a hostile server would answer.
std::string DrawReply(Random& random, uint64_t id) {
  StoreReply reply;
  auto op = static_cast<StoreOp>(1 + random.Below(static_cast<uint64_t>(kStoreOpLast)));
  if (random.Below(4) == 0) {
    reply.status = absl::Status(static_cast<absl::StatusCode>(1 + random.Below(16)), "drawn");
  } else if (random.Below(3) == 0) {
    RankSet ranks = DrawRanks(random);
    std::string value(random.Below(8) == 0 ? 9000 : random.Below(40), 'x');
    reply = EncodeExchanged(ranks, std::vector<absl::string_view>(ranks.size(), value));
  } else {
    auto body = std::make_shared<std::string>();
    reply.values = static_cast<uint32_t>(random.Below(4));
    for (uint32_t i = 0; i < reply.values; ++i) {
      AppendValue(*body, std::string(random.Below(8) == 0 ? 9000 : random.Below(40), 'r'));
    }
    reply.body = std::move(body);
    reply.number = static_cast<int64_t>(random());
  }
  StoreFrameOut frame = EncodeReply(op, id, reply);
  std::string bytes = std::string(frame.head.view()) + (frame.body ? *frame.body : "");
  Mutate(bytes, random);
  return bytes;
}

std::string Greeting() {
  StoreReply reply;
  auto body = std::make_shared<std::string>();
  AppendValue(*body, std::string(kStoreIdBytes, 's'));
  AppendValue(*body, "root");
  reply.values = 2;
  reply.body = std::move(body);
  StoreFrameOut frame = EncodeReply(StoreOp::kHello, 0, reply);
  return std::string(frame.head.view()) + *frame.body;
}

// A relay between fuzzed clients and a fuzzed root.
void FuzzRelay(Random& random) {
  StoreHello hello;
  hello.id = std::string(kStoreIdBytes, 'u');
  hello.ranks = 4;
  hello.rank = 0;
  StoreClientCore up({}, hello);
  StoreRelayTableOptions options;
  options.world = 4;
  options.expected = 2;
  options.files = random.Below(2) == 0;
  StoreRelayTable table(&up, options);
  StoreCore core(CoreOptions(), &table);
  Served served(core);
  absl::Time now = absl::UnixEpoch();
  for (int step = 0; step < 80; ++step) {
    if (up.state() == StoreClientCore::State::kAway) {
      up.Connected(/*local=*/true);
      (void)up.Receive(Greeting());
    }
    served.Step(random, now);
    if (testing::Test::HasFatalFailure()) return;
    size_t bytes = 0;
    std::array<iovec, 16> parts;
    for (size_t i = 0, count = up.Gather(parts.data(), parts.size()); i < count; ++i) {
      bytes += parts[i].iov_len;
    }
    up.Wrote(bytes);
    if (random.Below(3) == 0 && !up.Receive(DrawReply(random, 1 + random.Below(60))).ok()) {
      up.Lost();
    }
    if (random.Below(200) == 0) up.GiveUp(absl::UnavailableError("drawn"));
    now += absl::Milliseconds(static_cast<int64_t>(random.Below(30)));
    core.Advance(now);
  }
  up.GiveUp(absl::UnavailableError("the end"));
  served.CloseAll(now);
  core.Advance(now + absl::Minutes(5));
  ASSERT_EQ(core.sessions(), 0);
}

void FuzzDecoders(Random& random) {
  std::string bytes = EncodeHello(DrawHello(random));
  bytes[random.Below(bytes.size())] = static_cast<char>(random());
  bytes.resize(random.Below(bytes.size() + 1));
  if (auto hello = DecodeHello(bytes); hello.ok()) {
    ASSERT_LE(EncodeHello(*hello).size(), net::kHandshakeParameterBytesMax);
  }
  std::string ranks = DrawRanks(random).Encode();
  Mutate(ranks, random);
  if (auto set = RankSet::Decode(ranks, 5); set.ok()) {
    ASSERT_EQ(set->Encode(), ranks);
  }
  std::string frame = EncodeRequest(DrawRequest(random));
  Mutate(frame, random);
  StoreFrameReader reader(kStoreRequestBytesMax);
  size_t used = 0;
  (void)reader.Feed(frame, &used);
}

TEST(StoreFuzzTest, AnyBytesAreAnsweredOrRefused) {
  FuzzBudget budget(1200);
  while (std::optional<uint64_t> seed = budget.Next()) {
    Random random(*seed);
    switch (random.Below(3)) {
      case 0:
        FuzzServer(random);
        break;
      case 1:
        FuzzRelay(random);
        break;
      default:
        FuzzDecoders(random);
    }
    if (HasFailure()) FAIL() << budget.Repeat();
  }
  budget.Report();
}

}  // namespace
}  // namespace weft::collectives
