#include "tools/observe/simulate_waits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace weft::observe {
namespace {

constexpr int kTensor = 8, kStages = 8;
constexpr int64_t kSecond = 1'000'000'000, kNow = 1000 * kSecond;
constexpr uint32_t kStepsDone = 5;

enum Op { kReceive, kTensorReduce, kSend, kDataReduce, kWorldReduce, kOps };

class Simulation {
 public:
  Simulation(int ranks, SimulatedFault fault, uint64_t seed)
      : ranks_(ranks), fault_(fault), draw_(seed), at_(static_cast<size_t>(ranks), 0) {
    culprit_ = static_cast<int>(draw_.Below(static_cast<uint64_t>(ranks)));
    if (fault == SimulatedFault::kStuckFlow) culprit_ %= ranks - StageSize();  // one that sends
    before_ = static_cast<int>(draw_.Below(kOps));
  }

  SimulatedJob Run() {
    while (Round()) {
    }
    SimulatedJob job;
    job.culprits = {culprit_};
    job.fault = fault_ == SimulatedFault::kHang   ? Fault::kHangOutside
                : fault_ == SimulatedFault::kSlow ? Fault::kSlowRank
                                                  : Fault::kStuckFlow;
    if (fault_ == SimulatedFault::kStuckFlow) job.culprits.push_back(culprit_ + StageSize());
    Fill(&job.view);
    return job;
  }

 private:
  int StageSize() const { return ranks_ / kStages; }
  int StageOf(int rank) const { return rank / StageSize(); }
  int At(int rank) const { return at_[static_cast<size_t>(rank)]; }
  bool Has(int rank, int op) const {
    if (op == kReceive) return StageOf(rank) > 0;
    if (op == kSend) return StageOf(rank) + 1 < kStages;
    return true;
  }
  std::vector<int> Members(int rank, int op) const {
    std::vector<int> members;
    if (op == kTensorReduce) {
      for (int i = 0; i < kTensor; ++i) members.push_back(rank / kTensor * kTensor + i);
    } else if (op == kDataReduce) {
      const int first = StageOf(rank) * StageSize() + rank % kTensor;
      for (int at = first; at < (StageOf(rank) + 1) * StageSize(); at += kTensor) {
        members.push_back(at);
      }
    } else {
      for (int at = 0; at < ranks_; ++at) members.push_back(at);
    }
    return members;
  }
  std::string GroupOf(int rank, int op) const {
    if (op == kTensorReduce) return absl::StrCat("tensor", rank / kTensor);
    if (op == kDataReduce) return absl::StrCat("data", StageOf(rank), ".", rank % kTensor);
    return "world";
  }
  bool Hangs(int rank) const {
    return fault_ == SimulatedFault::kHang && rank == culprit_ && At(rank) == before_;
  }
  // Whether all that a collective waits for are at it, or beyond; and the other end of a message.
  bool CanPass(int rank, int op) const {
    if (!Has(rank, op)) return true;
    if (op == kReceive) {
      const int sender = rank - StageSize();
      const bool stuck = fault_ == SimulatedFault::kStuckFlow && sender == culprit_;
      return !stuck && At(sender) >= kSend;
    }
    if (op == kSend) {
      return !(fault_ == SimulatedFault::kStuckFlow && rank == culprit_);
    }
    const std::vector<int> members = Members(rank, op);
    return std::all_of(members.begin(), members.end(), [&](int member) {
      return At(member) > op || (At(member) == op && !Hangs(member));
    });
  }
  bool Round() {
    if (fault_ == SimulatedFault::kSlow) return false;
    bool moved = false;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int op = At(rank);
      // The world's reduction is the step's last, and someone is always missing from it.
      if (op >= kWorldReduce || Hangs(rank) || !CanPass(rank, op)) continue;
      ++at_[static_cast<size_t>(rank)];
      moved = true;
    }
    return moved;
  }

  void Open(int rank, int op, RankView* view) const {
    Call call{op == kReceive ? "receive"
              : op == kSend  ? "send"
                             : "all_reduce",
              GroupOf(rank, op),
              {}};
    call.record.start_ns = kNow - 5 * kSecond;
    call.record.sequence = kStepsDone;
    call.record.bytes = 1 << 20;
    call.record.check = 1;
    if (op == kReceive || op == kSend) {
      call.record.peer = op == kSend ? rank + StageSize() : rank - StageSize();
      Flow flow{"verbs", {}};
      flow.record.sends = op == kSend ? 1 : 0;
      flow.record.peer = call.record.peer;
      flow.record.outstanding = 1;
      flow.record.stuck_ms = 5000;
      const bool stuck = fault_ == SimulatedFault::kStuckFlow && op == kSend && rank == culprit_;
      flow.record.waiting = stuck || op == kReceive ? 0 : 1;
      flow.record.bytes_matched = flow.record.bytes_transmitted = stuck ? 1 << 20 : 0;
      view->flows[{flow.record.peer, op == kSend}] = flow;
    } else {
      view->calls[call.group].push_back(call);
      view->next[call.group] = kStepsDone + 1;
    }
    view->open.push_back(std::move(call));
    view->process.phase = "wait";
  }

  void Fill(JobView* view) {
    view->job = "simulated";
    view->world_size = ranks_;
    view->now_ns = kNow;
    view->mesh = absl::StrCat("tp", kTensor, ",dp", StageSize() / kTensor, ",pp", kStages);
    for (int rank = 0; rank < ranks_; ++rank) {
      RankView& own = view->ranks[rank];
      own.process.rank = rank;
      own.process.world_size = ranks_;
      own.process.host = absl::StrCat("host", rank / 8);
      own.process.pid = 1000 + rank;
      own.process.alive_ns = kNow;
      own.process.step = kStepsDone;
      own.state = {.known = true, .exists = true, .state = 'S'};
      own.moved_ns = fault_ == SimulatedFault::kSlow ? kNow : kNow - 5 * kSecond;
      for (const int op : {kTensorReduce, kDataReduce, kWorldReduce}) {
        const std::string group = GroupOf(rank, op);
        own.next[group] = kStepsDone + (At(rank) > op ? 1 : 0);
        if (view->groups.count(group) == 0) view->groups[group] = Members(rank, op);
      }
      own.process.phase = "forward";
      if (fault_ == SimulatedFault::kSlow) {
        Steps(rank, &own);
      } else if (!Hangs(rank)) {
        Open(rank, At(rank), &own);
      }
    }
  }

  void Steps(int rank, RankView* view) {
    for (uint32_t step = 1; step <= kStepsDone; ++step) {
      StepTimes times{.step = step};
      times.start_ns = kNow - (kStepsDone + 1 - step) * kSecond;
      times.end_ns = times.start_ns + kSecond;
      const double noise = 0.98 + 0.04 * static_cast<double>(draw_.Below(1000)) / 1000;
      times.seconds["forward"] = 0.4 * noise * (rank == culprit_ ? 1.3 : 1);
      times.seconds["wait_reduce"] = 1 - times.seconds["forward"];
      view->steps.push_back(times);
    }
  }

  const int ranks_;
  const SimulatedFault fault_;
  Random draw_;
  int culprit_ = 0;
  int before_ = 0;  // of kHang: the operation that it does not call
  std::vector<int> at_;
};

}  // namespace

absl::StatusOr<SimulatedJob> SimulateWaits(int ranks, SimulatedFault fault, uint64_t seed) {
  if (ranks < kTensor * kStages || ranks % (kTensor * kStages) != 0 || ranks > (1 << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot simulate ", ranks,
                                                   " ranks: right are multiples of ",
                                                   kTensor * kStages, " up to 1048576, as 16384"));
  }
  return Simulation(ranks, fault, seed).Run();
}

}  // namespace weft::observe
