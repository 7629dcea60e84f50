#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/nccl_harness/flow.h"
#include "tools/nccl_harness/scenarios.h"

namespace weft::harness {
namespace {

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(SystemClock().Now() - begin); }

}  // namespace

const char* ToString(Scenario scenario) {
  switch (scenario) {
    case Scenario::kIntrospection:
      return "introspection";
    case Scenario::kSteps:
      return "steps";
    case Scenario::kTraffic:
      return "traffic";
    case Scenario::kDeath:
      return "death of a peer";
    case Scenario::kConnections:
      return "connections";
    case Scenario::kMeasure:
      return "speed";
  }
  return "?";
}

int RanksOf(Scenario scenario) { return scenario == Scenario::kIntrospection ? 1 : 2; }

absl::Status Run(Scenario scenario, Rank& rank) {
  switch (scenario) {
    case Scenario::kIntrospection:
      return Introspect(rank);
    case Scenario::kSteps:
      return RunSteps(rank);
    case Scenario::kTraffic:
      return RunTraffic(rank);
    case Scenario::kDeath:
      return Die(rank);
    case Scenario::kConnections:
      return SetUpConnections(rank);
    case Scenario::kMeasure:
      return MeasureSpeed(rank);
  }
  return absl::InternalError("no such scenario");
}

absl::Status RunTraffic(Rank& rank) {
  const Options& options = rank.options();
  rank.watch().SetStep("connections of random traffic");
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(options.communicators));
  Properties properties;
  WEFT_RETURN_IF_ERROR(rank.Need(rank.api().GetProperties(options.device, &properties),
                                 Contract::kPropertiesValid, "getProperties"));
  size_t slots = SlotCount(options.size_max + options.size_max / 4, nccl::abi::kGroupedReceivesMax,
                           options.memory_max);
  std::vector<Plan> plans[2];  // by direction: from rank 0, from rank 1
  for (uint64_t direction : {0, 1}) {
    for (const End& end : ends) {
      PlanOptions plan;
      plan.seed = options.seed;
      plan.stream = 2 * static_cast<uint64_t>(end.number) + direction;
      plan.count = options.requests;
      plan.size_max = std::min(options.size_max, properties.max_p2p_bytes);
      plan.group_max =
          std::min({properties.max_recvs, nccl::abi::kGroupedReceivesMax, static_cast<int>(slots)});
      plans[direction].push_back(RandomPlan(plan));
    }
  }
  rank.watch().SetStep("random traffic");
  absl::Time begin = SystemClock().Now();
  uint64_t bytes = 0;
  {
    std::vector<std::unique_ptr<Sender>> senders;
    std::vector<std::unique_ptr<Receiver>> receivers;
    auto me = static_cast<size_t>(rank.number());
    for (size_t i = 0; i < ends.size(); ++i) {
      senders.push_back(std::make_unique<Sender>(rank, ends[i], plans[me][i], options.seed + i));
      receivers.push_back(
          std::make_unique<Receiver>(rank, ends[i], plans[1 - me][i], options.seed + i));
      WEFT_RETURN_IF_ERROR(senders[i]->Open());
      WEFT_RETURN_IF_ERROR(receivers[i]->Open());
    }
    WEFT_RETURN_IF_ERROR(RunFlows(rank, ends, senders, receivers));
    for (const auto& receiver : receivers) bytes += receiver->bytes();
  }
  rank.figures().emplace_back("requests",
                              static_cast<double>(options.requests) * 2 * options.communicators);
  rank.figures().emplace_back("bytes", static_cast<double>(bytes));
  rank.figures().emplace_back("seconds", SecondsSince(begin));
  WEFT_RETURN_IF_ERROR(rank.Meet());
  rank.watch().SetStep("close");
  return rank.Close(ends, rank.number() + static_cast<int>(options.seed % 2) * 2);
}

absl::Status Die(Rank& rank) {
  rank.watch().SetStep("connection");
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(1));
  constexpr size_t kBytes = 8 << 20;
  std::vector<std::byte> memory(kBytes);
  void* handle = nullptr;
  WEFT_RETURN_IF_ERROR(
      rank.Need(rank.api().Register(ends[0].receive, memory.data(), memory.size(), &handle),
                Contract::kRegisterAgain, "regMr"));
  if (rank.number() == 1) {  // begins to send, and dies of it
    void *send_handle = nullptr, *request = nullptr;
    WEFT_RETURN_IF_ERROR(
        rank.Need(rank.api().Register(ends[0].send, memory.data(), memory.size(), &send_handle),
                  Contract::kRegisterAgain, "regMr"));
    for (int i = 0; i < 1000 && request == nullptr; ++i) {
      WEFT_RETURN_IF_ERROR(
          rank.Need(rank.api().Send(ends[0].send, memory.data(), kBytes, 1, send_handle, &request),
                    Contract::kTransientIsSuccess, "isend"));
    }
    kill(getpid(), SIGKILL);
  }
  rank.watch().SetStep("receives of a peer that dies");
  Received what{{memory.data()}, {handle}, {kBytes}, {1}};
  // The first may still come whole; the second was never sent.
  std::array<void*, 2> requests{};
  std::array<bool, 2> finished{};
  absl::Time begin = SystemClock().Now(), give_up = begin + rank.options().death_limit;
  nccl::abi::Result result = nccl::abi::kSuccess;
  while (result == nccl::abi::kSuccess && !finished[1] && SystemClock().Now() < give_up) {
    for (size_t i = 0; i < 2 && result == nccl::abi::kSuccess; ++i) {
      int done = 0;
      int sizes[64] = {};
      if (finished[i]) continue;
      result = requests[i] == nullptr ? rank.api().Receive(ends[0].receive, what, &requests[i])
                                      : rank.api().Test(requests[i], &done, sizes);
      finished[i] = done != 0;
    }
  }
  double seconds = SecondsSince(begin);
  if (result == nccl::abi::kSuccess) {
    rank.watch().Broken(
        Contract::kPeerDeathReported,
        absl::StrCat("no error within ", absl::FormatDuration(rank.options().death_limit),
                     " (--death-limit) of the peer's death"));
  }
  rank.figures().emplace_back("seconds until the death was reported", seconds);
  return absl::OkStatus();  // NCCL aborts here: nothing is closed in order
}

absl::Status SetUpConnections(Rank& rank) {
  int count = rank.options().connections;
  rank.watch().SetStep("many connections");
  WEFT_RETURN_IF_ERROR(rank.Meet());
  absl::Time begin = SystemClock().Now();
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(count, /*contexts=*/false));
  double connected = SecondsSince(begin);
  rank.figures().emplace_back("connections", 2.0 * count);
  rank.figures().emplace_back("seconds to set up", connected);
  begin = SystemClock().Now();
  WEFT_RETURN_IF_ERROR(rank.Close(ends));
  rank.figures().emplace_back("seconds to close", SecondsSince(begin));
  return absl::OkStatus();
}

namespace {

// `count` messages one way, many in flight; the receiver's time.
absl::StatusOr<double> Stream(Rank& rank, std::vector<End>& ends, int count, size_t size,
                              bool check, uint64_t* wrong) {
  Plan plan = EvenPlan(rank.options().seed, 500, count, size);
  std::vector<std::unique_ptr<Sender>> senders;
  std::vector<std::unique_ptr<Receiver>> receivers;
  if (rank.number() == 0) {
    senders.push_back(std::make_unique<Sender>(rank, ends[0], plan, 1));
    senders[0]->set_refill(check);
    senders[0]->set_window(kWindow);  // as NCCL
    WEFT_RETURN_IF_ERROR(senders[0]->Open());
  } else {
    receivers.push_back(std::make_unique<Receiver>(rank, ends[0], plan, 1));
    receivers[0]->set_check(check);
    WEFT_RETURN_IF_ERROR(receivers[0]->Open());
  }
  WEFT_RETURN_IF_ERROR(rank.Meet());
  absl::Time begin = SystemClock().Now();
  size_t before = 0;
  while (!(rank.number() == 0 ? senders[0]->finished() : receivers[0]->finished())) {
    WEFT_RETURN_IF_ERROR(rank.number() == 0 ? senders[0]->Turn() : receivers[0]->Turn());
    size_t done = rank.number() == 0 ? senders[0]->done() : receivers[0]->done();
    if (done == std::exchange(before, done)) sched_yield();  // as NCCL's progress thread does
  }
  double seconds = SecondsSince(begin);
  WEFT_RETURN_IF_ERROR(rank.Meet());
  if (rank.number() == 1 && check) *wrong += receivers[0]->wrong_bytes();
  return seconds;
}

// One message there and one back, `count` times.
absl::StatusOr<double> PingPong(Rank& rank, std::vector<End>& ends, int count, size_t size) {
  Plan plan = EvenPlan(rank.options().seed, 501, count, size);
  Sender sender(rank, ends[0], plan, 1);
  Receiver receiver(rank, ends[0], plan, 1);
  sender.set_refill(false);
  receiver.set_check(false);
  WEFT_RETURN_IF_ERROR(sender.Open());
  WEFT_RETURN_IF_ERROR(receiver.Open());
  WEFT_RETURN_IF_ERROR(rank.Meet());
  absl::Time begin = SystemClock().Now();
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    for (int half = 0; half < 2; ++half) {
      bool sends = (half == 0) == (rank.number() == 0);
      while (sends ? sender.posted() <= i : receiver.done() <= i) {
        // A send goes on only while it is tested, whoever is waited for.
        WEFT_RETURN_IF_ERROR(sender.TurnUpTo(sends ? i + 1 : sender.posted()));
        WEFT_RETURN_IF_ERROR(receiver.Turn());
        if (!sends && receiver.done() <= i) sched_yield();
      }
    }
  }
  while (!sender.finished()) WEFT_RETURN_IF_ERROR(sender.Turn());
  double seconds = SecondsSince(begin);
  WEFT_RETURN_IF_ERROR(rank.Meet());
  return seconds / count / 2;
}

}  // namespace

absl::Status MeasureSpeed(Rank& rank) {
  const Options& options = rank.options();
  rank.watch().SetStep("speed");
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(1));
  for (size_t size = options.measure_min; size <= options.measure_max;
       size *= static_cast<size_t>(options.measure_factor)) {
    Measured row;
    row.bytes = size;
    size_t piece = options.chunk == 0 ? size : std::min(size, options.chunk);
    int pieces = static_cast<int>((size + piece - 1) / piece);
    WEFT_RETURN_IF_ERROR(Stream(rank, ends, 4, piece, /*check=*/true, &row.wrong).status());
    WEFT_ASSIGN_OR_RETURN(double trip, PingPong(rank, ends, options.iterations, piece));
    WEFT_ASSIGN_OR_RETURN(double seconds, Stream(rank, ends, options.iterations * pieces, piece,
                                                 /*check=*/false, &row.wrong));
    row.half_round_trip_us = trip * 1e6;
    row.time_us = seconds / options.iterations * 1e6;
    rank.measured().push_back(row);
    if (size == 0) break;
  }
  return rank.Close(ends);
}

}  // namespace weft::harness
