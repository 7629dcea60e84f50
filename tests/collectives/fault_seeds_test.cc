// Collectives of real processes over real links, each run with one fault drawn from its seed: every
// surviving rank must end with an error that names the right rank, nothing may hang, and what the
// survivors make of the group by Shrink() must reduce rightly.
//
// WEFT_SEED=N runs one seed and prints its draw; WEFT_SEEDS=N runs the seeds 1 to N, 1,000 in about
// four minutes. Else a few of them run, without those that wait for a timeout.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/random.h"
#include "collectives/communicator.h"
#include "collectives/schedule.h"
#include "tests/collectives/processes.h"

namespace weft::collectives {
namespace {

constexpr uint64_t kSeedsByDefault = 40;
constexpr size_t kJobsAtOnce = 6;  // most of a run is waiting for what notices the fault
constexpr int kRoundsMax = 100'000;
constexpr absl::Duration kLimit = absl::Seconds(60);  // of a run, on a machine with much else to do

constexpr absl::Duration kNoticedLate = absl::Seconds(5);  // worth to be told, not wrong

enum class Fault : uint8_t { kDie, kStop, kMismatch, kStoreGone, kAbort, kCancel };
constexpr const char* kFaultNames[] = {"die", "stop", "mismatch", "store gone", "abort", "cancel"};
enum class Difference : uint8_t { kKind, kCount, kType, kRoot };
constexpr const char* kDifferenceNames[] = {"kind", "count", "type", "root"};

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce,     CollectiveKind::kAllGather,
                                     CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast,
                                     CollectiveKind::kReduce,        CollectiveKind::kGather,
                                     CollectiveKind::kScatter,       CollectiveKind::kAllToAll};

// What a seed draws; all ranks draw it alike.
struct Draw {
  explicit Draw(uint64_t seed) : seed(seed) {
    Random random(seed);
    const auto pick = [&](const auto& list) { return list[random.Below(std::size(list))]; };
    size = 2 + static_cast<int>(random.Below(7));
    victim = static_cast<int>(random.Below(static_cast<uint64_t>(size)));
    constexpr Fault kDrawn[] = {Fault::kDie,      Fault::kDie,       Fault::kDie,
                                Fault::kMismatch, Fault::kMismatch,  Fault::kMismatch,
                                Fault::kAbort,    Fault::kCancel,    Fault::kAbort,
                                Fault::kCancel,   Fault::kStoreGone, Fault::kStop};
    fault = pick(kDrawn);
    transport = random.Below(2) == 0 ? "shm" : "tcp";
    constexpr const char* kAlgorithms[] = {"auto", "auto", "direct", "ring", "tree", "oneshot"};
    algorithm = pick(kAlgorithms);
    round = static_cast<int>(random.Below(8));
    delay_us = static_cast<int>(random.Below(3000));
    in_flight = 1 + static_cast<int>(random.Below(3));
    difference = static_cast<Difference>(random.Below(4));
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank);
    if (random.Below(2) == 0) {
      for (size_t i = ranks.size() - 1; i > 0; --i) std::swap(ranks[i], ranks[random.Below(i + 1)]);
    }
  }
  std::string ToText() const {
    return absl::StrCat("WEFT_SEED=", seed, ": ", kFaultNames[static_cast<int>(fault)],
                        fault == Fault::kMismatch
                            ? absl::StrCat(" of ", kDifferenceNames[static_cast<int>(difference)])
                            : "",
                        " of rank ", victim, " of ", size, " in round ", round, " after ", delay_us,
                        " us, ", transport, ", ", algorithm, ", ", in_flight, " in flight");
  }
  // What differs after a mismatch has to be drawn again by each round's own stream.
  Random OfRound(int number) const { return Random(seed, static_cast<uint64_t>(number) + 1); }

  uint64_t seed;
  int size, victim;  // the victim's rank in the job
  Fault fault;
  const char* transport;
  const char* algorithm;
  int round, delay_us, in_flight;
  Difference difference;
  std::vector<Rank> ranks;  // of the group, in its order
};

// Shared by the processes of a run.
struct Board {
  std::atomic<int> finished{0};
  std::atomic<int> store_unwanted{0};  // by so many ranks
  std::atomic<bool> store_gone{false};
  std::atomic<int64_t> fault_ns{0};
  std::atomic<int64_t> noticed_ns{0};  // by the last survivor
};

bool Await(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + kLimit;
  while (!condition()) {
    if (absl::Now() > end) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

// One collective, with buffers of its own; its inputs are such that every output is known.
struct Call {
  CollectiveKind kind;
  size_t count;
  GroupRank root;
  int number;
  DataType type = DataType::kInt32;
  std::vector<int32_t> in, out;
  WorkPtr work;

  int32_t Value(size_t rank, size_t i) const {
    return static_cast<int32_t>(rank * 7 + i % 5) + number;
  }

  void Start(Communicator& group) {
    const size_t all = count * static_cast<size_t>(group.size());
    in.resize(all);
    out.assign(all, -1);
    for (size_t i = 0; i < all; ++i) in[i] = Value(group.rank().index(), i);
    switch (kind) {
      case CollectiveKind::kAllReduce:
        work = group.AllReduce(in.data(), out.data(), count, type, ReduceOp::kSum);
        break;
      case CollectiveKind::kAllGather:
        work = group.AllGather(in.data(), out.data(), count, type);
        break;
      case CollectiveKind::kReduceScatter:
        work = group.ReduceScatter(in.data(), out.data(), count, type, ReduceOp::kSum);
        break;
      case CollectiveKind::kBroadcast:
        work = group.Broadcast(in.data(), out.data(), count, type, root);
        break;
      case CollectiveKind::kReduce:
        work = group.Reduce(in.data(), out.data(), count, type, ReduceOp::kSum, root);
        break;
      case CollectiveKind::kGather:
        work = group.Gather(in.data(), out.data(), count, type, root);
        break;
      case CollectiveKind::kScatter:
        work = group.Scatter(in.data(), out.data(), count, type, root);
        break;
      case CollectiveKind::kAllToAll:
        work = group.AllToAll(in.data(), out.data(), count, type);
        break;
      default:
        work = group.Barrier();
    }
  }

  absl::Status Wait(const Communicator& group) {
    if (absl::Status status = work->Wait(); !status.ok()) return status;
    const size_t me = group.rank().index(), size = static_cast<size_t>(group.size());
    const bool is_root = group.rank() == root;
    for (size_t i = 0; i < count * size; ++i) {
      const size_t rank = i / count, at = i % count;
      int64_t expected = -1;  // untouched
      switch (kind) {
        case CollectiveKind::kAllReduce:
        case CollectiveKind::kReduce:
          if (i < count && (is_root || kind == CollectiveKind::kAllReduce)) expected = Sum(size, i);
          break;
        case CollectiveKind::kReduceScatter:
          if (i < count) expected = Sum(size, me * count + i);
          break;
        case CollectiveKind::kAllGather:
        case CollectiveKind::kGather:
          if (is_root || kind == CollectiveKind::kAllGather) expected = Value(rank, at);
          break;
        case CollectiveKind::kBroadcast:
          if (i < count) expected = Value(root.index(), i);
          break;
        case CollectiveKind::kScatter:
          if (i < count) expected = Value(root.index(), me * count + i);
          break;
        case CollectiveKind::kAllToAll:
          expected = Value(rank, me * count + at);
          break;
        default:
          break;
      }
      if (out[i] == expected) continue;
      return absl::InternalError(absl::StrCat(ToString(kind), " of ", count, ": output ", i, " is ",
                                              out[i], ", not ", expected));
    }
    return absl::OkStatus();
  }

 private:
  int64_t Sum(size_t size, size_t i) const {
    int64_t sum = 0;
    for (size_t rank = 0; rank < size; ++rank) sum += Value(rank, i);
    return sum;
  }
};

std::vector<Call> CallsOf(const Draw& draw, int number) {
  constexpr size_t kCounts[] = {1, 7, 1000, 20'000, 100'000};
  Random random = draw.OfRound(number);
  std::vector<Call> calls;
  for (int i = 0; i < draw.in_flight; ++i) {
    const CollectiveKind kind = kKinds[random.Below(std::size(kKinds))];
    const size_t count = kCounts[random.Below(std::size(kCounts))];
    const GroupRank root(static_cast<int>(random.Below(static_cast<uint64_t>(draw.size))));
    calls.push_back({.kind = kind, .count = count, .root = root, .number = number});
  }
  return calls;
}

// The call of the round of a mismatch: all ranks' but the victim's, and the victim's.
void MakeDiffer(const Draw& draw, Call& call, bool is_victim) {
  if (draw.difference == Difference::kRoot) {
    call.kind = CollectiveKind::kBroadcast;
    if (is_victim) call.root = GroupRank((call.root.value() + 1) % draw.size);
  }
  if (!is_victim) return;
  if (draw.difference == Difference::kKind) call.kind = CollectiveKind::kBarrier;
  if (draw.difference == Difference::kCount) ++call.count;
  if (draw.difference == Difference::kType) call.type = DataType::kFloat32;
}

// One rank of a run.
class Participant {
 public:
  Participant(const Draw& draw, Board& board, std::shared_ptr<Endpoint> endpoint)
      : draw_(draw),
        board_(board),
        is_victim_(endpoint->rank().value() == draw.victim),
        victim_(GroupRank(
            static_cast<int>(std::find(draw.ranks.begin(), draw.ranks.end(), Rank(draw.victim)) -
                             draw.ranks.begin()))),
        rank_(endpoint->rank().value()) {
    group_ = *Communicator::Create(std::move(endpoint), "world", draw.ranks);
  }
  ~Participant() {
    if (thread_.joinable()) thread_.join();
  }

  bool Run() {
    if (draw_.fault == Fault::kStoreGone) return RunWithoutStore();
    absl::Status status;
    for (int number = 0; status.ok() && number < kRoundsMax; ++number) {
      if (is_victim_ && number == draw_.round) {
        if (draw_.fault == Fault::kCancel) return Cancel();
        Inject();
      }
      status = Round(number);
    }
    const int64_t now_ns = SystemClock::Nanoseconds();
    int64_t last_ns = board_.noticed_ns;
    while (last_ns < now_ns && !board_.noticed_ns.compare_exchange_weak(last_ns, now_ns)) {
    }
    const bool good = Judge(status) && Recover();
    ++board_.finished;
    return good;
  }

 private:
  bool Fail(absl::string_view what, const absl::Status& status) {
    absl::FPrintF(stderr, "%s\n  rank %d: %s: %s [%s]\n", draw_.ToText(), rank_, what,
                  status.ToString(), ToText(FailureOf(status)));
    return false;
  }

  absl::Status Round(int number) {
    std::vector<Call> calls = CallsOf(draw_, number);
    if (draw_.fault == Fault::kMismatch && number == draw_.round) {
      if (is_victim_) board_.fault_ns = SystemClock::Nanoseconds();
      MakeDiffer(draw_, calls[0], is_victim_);
    }
    for (Call& call : calls) call.Start(*group_);
    absl::Status first;
    for (Call& call : calls) {
      const absl::Status status = call.Wait(*group_);
      if (first.ok()) first = status;
    }
    return first;
  }

  void Inject() {
    if (draw_.fault == Fault::kMismatch) return;
    thread_ = std::thread([this] {
      absl::SleepFor(absl::Microseconds(draw_.delay_us));  // the drawn point in time
      board_.fault_ns = SystemClock::Nanoseconds();
      if (draw_.fault == Fault::kDie) kill(getpid(), SIGKILL);
      if (draw_.fault == Fault::kStop) kill(getpid(), SIGSTOP);
      if (draw_.fault == Fault::kAbort) group_->Abort(absl::AbortedError("by the seed"));
    });
  }

  bool Cancel() {
    std::vector<Call> calls = CallsOf(draw_, draw_.round);
    for (Call& call : calls) call.Start(*group_);
    board_.fault_ns = SystemClock::Nanoseconds();
    group_.reset();
    for (Call& call : calls) {
      if (!call.work->done()) return Fail("a work outlives its communicator", absl::OkStatus());
      const absl::Status status = call.work->status();
      if (!status.ok() && !absl::IsCancelled(status)) return Fail("cancelled", status);
    }
    // The process lives on, and so do its links.
    return Await([&] { return board_.finished == draw_.size - 1; }) ||
           Fail("the others have not ended", absl::OkStatus());
  }

  bool Judge(const absl::Status& status) {
    const int rank = FailureOf(status).rank;
    const std::string victim = absl::StrCat("rank ", draw_.victim);
    const auto says = [&](absl::string_view text) {
      return absl::StrContains(status.message(), text);
    };
    bool good = false;
    switch (draw_.fault) {
      case Fault::kDie:
        good = rank == draw_.victim && says(absl::StrCat(victim, " is gone"));
        break;
      case Fault::kStop:
        good = absl::IsDeadlineExceeded(status) && rank == draw_.victim && says(victim);
        break;
      case Fault::kMismatch:  // of two, the higher rank is taken for the one that differs
        good = absl::IsFailedPrecondition(status) && says(absl::StrCat(victim, " called ")) &&
               rank == (draw_.size == 2 ? 1 : draw_.victim);
        break;
      case Fault::kAbort:
        good = absl::IsAborted(status) && says("by the seed");
        break;
      case Fault::kCancel:
        good = !status.ok() && says(victim);
        break;
      case Fault::kStoreGone:
        break;
    }
    return good || Fail("not the error that was due", status);
  }

  bool Recover() {
    const bool leaves =
        draw_.fault == Fault::kDie || draw_.fault == Fault::kStop || draw_.fault == Fault::kCancel;
    if (draw_.fault == Fault::kStop && is_victim_) return true;
    auto survivors = group_->Shrink(
        leaves ? std::vector<GroupRank>{victim_} : std::vector<GroupRank>{}, "survivors");
    if (!survivors.ok()) return Fail("shrink", survivors.status());
    absl::Status status;
    for (const size_t count : {10, 100'000}) {
      if (status.ok()) status = SumOfOnes(**survivors, count);
    }
    if (status.ok()) status = (*survivors)->Barrier()->Wait();
    return status.ok() || Fail("after shrink", status);
  }

  // Collectives need no store, a new group of them does.
  bool RunWithoutStore() {
    absl::Status status;
    int number = 0;
    for (; status.ok() && number < draw_.round; ++number) status = Round(number);
    ++board_.store_unwanted;
    if (!Await([&] { return board_.store_gone.load(); })) return Fail("the store stays", status);
    for (const int end = number + 4; status.ok() && number < end; ++number) status = Round(number);
    if (!status.ok()) return Fail("without a store", status);
    if (!is_victim_) {
      const auto shrunk = group_->Shrink({victim_}, "few");
      const bool alone = draw_.size == 2;
      if (shrunk.ok() != alone) return Fail("shrink without a store", shrunk.status());
      if (!alone && !absl::StrContains(shrunk.status().message(), "store")) {
        return Fail("the store is not named", shrunk.status());
      }
    }
    status = Round(number);
    return status.ok() || Fail("after an attempt to shrink", status);
  }

  const Draw& draw_;
  Board& board_;
  const bool is_victim_;
  const GroupRank victim_;
  const int rank_;
  std::unique_ptr<Communicator> group_;
  std::thread thread_;
};

SettingPairs SettingsFor(const Draw& draw) {
  return {absl::StrCat("transport=", draw.transport),
          absl::StrCat("collective.algorithm=", draw.algorithm),
          absl::StrCat("collective.timeout=", draw.fault == Fault::kStop ? "3s" : "50s"),
          // Also of the start, on a busy machine.
          absl::StrCat("store.timeout=", draw.fault == Fault::kStoreGone ? "6s" : "50s"),
          "records.enabled=false", "log.level=off"};
}

// In a process of its own.
bool RunSeed(const Draw& draw, Board& board) {
  Processes job(draw.size, SettingsFor(draw), [&](const std::shared_ptr<Endpoint>& endpoint) {
    return Participant(draw, board, endpoint).Run();
  });
  if (draw.fault == Fault::kStoreGone) {
    if (!Await([&] { return board.store_unwanted == draw.size; })) return false;
    job.StopStore();
    board.store_gone = true;
  }
  bool good = true;
  for (int rank = 0; rank < draw.size; ++rank) {
    if (rank == draw.victim && draw.fault == Fault::kStop) continue;
    const int expected = rank == draw.victim && draw.fault == Fault::kDie ? SIGKILL : 0;
    const int status = job.Wait(rank, kLimit);
    if (status == expected) continue;
    absl::FPrintF(stderr, "%s\n  rank %d ended with %d, not %d\n", draw.ToText(), rank, status,
                  expected);
    good = false;
  }
  return good;
}

Board* NewBoard() {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Board;
}

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  uint64_t number = otherwise;
  EXPECT_TRUE(text == nullptr || absl::SimpleAtoi(text, &number)) << variable << "=" << text;
  return number;
}

TEST(FaultSeedsTest, EverySurvivorEndsWithTheRightErrorAndItsNextGroupIsRight) {
  const bool one = std::getenv("WEFT_SEED") != nullptr;
  const bool some = !one && std::getenv("WEFT_SEEDS") == nullptr;
  const uint64_t first = NumberOf("WEFT_SEED", 1);
  const uint64_t last = one ? first : NumberOf("WEFT_SEEDS", kSeedsByDefault);
  struct Running {
    Draw draw;
    Board* board;
  };
  std::map<pid_t, Running> running;
  std::map<Fault, absl::Duration> noticed_max;
  for (uint64_t seed = first; seed <= last || !running.empty();) {
    if (seed <= last && running.size() < kJobsAtOnce) {
      const Draw draw(seed++);
      if (some && (draw.fault == Fault::kStop || draw.fault == Fault::kStoreGone)) continue;
      if (one) absl::PrintF("%s\n", draw.ToText());
      Board* board = NewBoard();
      ASSERT_NE(board, nullptr);
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        SetLogLevel(one ? LogLevel::kWarn : LogLevel::kOff);
        _exit(RunSeed(draw, *board) ? 0 : 1);
      }
      running.emplace(child, Running{draw, board});
      continue;
    }
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    ASSERT_GT(ended, 0);
    const auto at = running.find(ended);
    if (at == running.end()) continue;
    const auto& [draw, board] = at->second;
    EXPECT_EQ(status, 0) << draw.ToText();
    if (board->noticed_ns > 0 && board->fault_ns > 0) {
      absl::Duration& max = noticed_max[draw.fault];
      const absl::Duration took = absl::Nanoseconds(board->noticed_ns - board->fault_ns);
      if (took > kNoticedLate) {
        absl::PrintF("%s: noticed after %s\n", draw.ToText(), absl::FormatDuration(took));
      }
      max = std::max(max, took);
    }
    munmap(board, sizeof(Board));
    running.erase(at);
  }
  for (const auto& [fault, max] : noticed_max) {
    absl::PrintF("%s: noticed by all within %s\n", kFaultNames[static_cast<int>(fault)],
                 absl::FormatDuration(max));
  }
}

}  // namespace
}  // namespace weft::collectives
