#include "tools/bw/calibrate.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/first_line.h"
#include "base/median.h"
#include "base/status.h"
#include "collectives/reduce.h"
#include "topology/host/affinity.h"
#include "topology/host/core_cache.h"

namespace weft::bw {
namespace {

using collectives::Communicator;
using collectives::GroupRank;
using collectives::WorkPtr;
using collectives::planner::Calibration;
using collectives::planner::LinkCosts;

// Many short runs: one of them is alone on the cores. Passes that agree tell that it was so; two of
// them may be disturbed.
constexpr int kPasses = 5;
constexpr int kShortRuns = 70;
constexpr int kLongRuns = 10;
// Passes of an idle machine agree within some 10 %; more than this is another program's doing.
constexpr double kSpreadMost = 1.5;
// Cores that other programs may take. Measuring takes two, so that one of them is disturbed then.
constexpr double kBusyMost = 0.3;
constexpr absl::Duration kLook = absl::Milliseconds(300);
constexpr int kPings = 100;
constexpr int kMessages = 64;
constexpr int kRounds = 4;
constexpr size_t kSmallBytes = 8;
constexpr size_t kLinkBytes = 1 << 20;   // a chunk or a few
constexpr size_t kHostBytes = 16 << 20;  // above what caches hold
constexpr size_t kCacheBytes = 256 << 10;

// The smallest of several runs: what the machine can do, whatever else it does.
template <typename Run>
absl::StatusOr<double> Least(int repeats, const Run& run) {
  double least = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    WEFT_ASSIGN_OR_RETURN(const double nanoseconds, run());
    if (repeat == 0 || nanoseconds < least) least = nanoseconds;
  }
  return std::max(least, 1e-6);
}

double Now() { return static_cast<double>(SystemClock::Nanoseconds()); }

int Cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

// A message there and back, halved: the quickest of `times`.
absl::StatusOr<double> PingPong(Communicator& group, std::vector<std::byte>& data, size_t bytes,
                                int times) {
  const int me = group.rank().value(), last = group.size() - 1;
  WEFT_RETURN_IF_ERROR(group.Barrier()->Wait());
  if (me != 0 && me != last) return 0.0;
  const GroupRank other(me == 0 ? last : 0);
  double least = 0;
  for (int i = 0; i < times; ++i) {
    const double start = Now();
    if (me == 0) WEFT_RETURN_IF_ERROR(group.Send(data.data(), bytes, other, 0)->Wait());
    WEFT_RETURN_IF_ERROR(group.Receive(data.data(), bytes, other, 0)->Wait());
    if (me != 0) WEFT_RETURN_IF_ERROR(group.Send(data.data(), bytes, other, 0)->Wait());
    const double half = (Now() - start) / 2;
    if (i == 0 || half < least) least = half;
  }
  return least;
}

// Many small messages at once, one way; for each. The first rank's time is what counts: it ends
// when the last rank has them all, as messages may be sent long before they are received.
absl::StatusOr<double> Stream(Communicator& group, std::vector<std::byte>& data) {
  const int me = group.rank().value(), last = group.size() - 1;
  WEFT_RETURN_IF_ERROR(group.Barrier()->Wait());
  std::vector<WorkPtr> works;
  const double start = Now();
  for (int i = 0; i < kMessages && (me == 0 || me == last); ++i) {
    std::byte* at = data.data() + static_cast<size_t>(i) * kSmallBytes;
    works.push_back(me == 0 ? group.Send(at, kSmallBytes, GroupRank(last), 1)
                            : group.Receive(at, kSmallBytes, GroupRank(0), 1));
  }
  for (const WorkPtr& work : works) WEFT_RETURN_IF_ERROR(work->Wait());
  if (me == 0) WEFT_RETURN_IF_ERROR(group.Receive(nullptr, 0, GroupRank(last), 1)->Wait());
  if (me == last) WEFT_RETURN_IF_ERROR(group.Send(nullptr, 0, GroupRank(0), 1)->Wait());
  return (Now() - start) / kMessages;
}

// Every rank to the next at once, `times` messages of `bytes`; for each byte of all ranks.
absl::StatusOr<double> Round(Communicator& group, std::vector<std::byte>& data, size_t bytes,
                             int times) {
  const int me = group.rank().value(), n = group.size();
  WEFT_RETURN_IF_ERROR(group.Barrier()->Wait());
  const double start = Now();
  for (int i = 0; i < times; ++i) {
    WorkPtr receive =
        group.Receive(data.data() + kHostBytes, bytes, GroupRank((me + n - 1) % n), 2);
    WorkPtr send = group.Send(data.data(), bytes, GroupRank((me + 1) % n), 2);
    WEFT_RETURN_IF_ERROR(send->Wait());
    WEFT_RETURN_IF_ERROR(receive->Wait());
  }
  WEFT_RETURN_IF_ERROR(group.Barrier()->Wait());
  return (Now() - start) / (static_cast<double>(bytes) * n * times);
}

absl::StatusOr<LinkCosts> MeasureLinks(Communicator& group) {
  std::vector<std::byte> data(2 * kHostBytes);
  LinkCosts link;
  WEFT_ASSIGN_OR_RETURN(
      link.latency, Least(kShortRuns, [&] { return PingPong(group, data, kSmallBytes, kPings); }));
  WEFT_ASSIGN_OR_RETURN(link.message, Least(kShortRuns, [&] { return Stream(group, data); }));
  WEFT_ASSIGN_OR_RETURN(const double large,
                        Least(2 * kLongRuns, [&] { return PingPong(group, data, kLinkBytes, 4); }));
  link.byte = std::max(large - link.latency, 1.0) / static_cast<double>(kLinkBytes);
  WEFT_ASSIGN_OR_RETURN(link.host_byte,
                        Least(kLongRuns, [&] { return Round(group, data, kHostBytes, 1); }));
  WEFT_RETURN_IF_ERROR(group.Barrier()->Wait());
  return link;
}

// Nanoseconds of a byte that both ends copy, by links that do so with every message: each core
// copies for its rank's two ends, or for those of all ranks that share it.
absl::StatusOr<double> MeasureSegment(Communicator& group) {
  std::vector<std::byte> data(2 * kHostBytes);
  WEFT_ASSIGN_OR_RETURN(const double of_all,
                        Least(kShortRuns, [&] { return Round(group, data, kLinkBytes, kRounds); }));
  return of_all * std::min(group.size(), Cores());
}

// A message between ranks that do not spin and are bound to one core: what a rank waits for until
// another one has had the core. Nothing where they cannot be.
absl::StatusOr<std::optional<double>> MeasureSwitch(Communicator& group, Control& control) {
  std::vector<std::byte> data(kSmallBytes);
  const auto cpus = AllowedCpus();
  const bool knows = cpus.ok() && !cpus->empty();
  WEFT_ASSIGN_OR_RETURN(const auto fronts,
                        control.Exchange({knows ? static_cast<double>(cpus->front()) : -1}));
  // Rank 0's, which another rank may have been kept from by its launcher.
  const int cpu = static_cast<int>(fronts.front()[0]);
  const bool bound = knows && cpu >= 0 && BindThread({cpu}).ok();
  WEFT_ASSIGN_OR_RETURN(const auto are_bound, control.Exchange({bound ? 1.0 : 0.0}));
  const bool together = std::all_of(are_bound.begin(), are_bound.end(),
                                    [](const std::vector<double>& one) { return one[0] == 1; });
  absl::StatusOr<double> least = 0.0;
  if (together) {
    least = Least(kShortRuns, [&] { return PingPong(group, data, kSmallBytes, kPings); });
  }
  if (bound) WEFT_RETURN_IF_ERROR(BindThread(*cpus));
  WEFT_RETURN_IF_ERROR(least.status());
  return together ? std::optional(*least) : std::nullopt;
}

// Two threads on one core hand a word to and fro.
double SwitchRank() {
  auto cpus = AllowedCpus();
  if (!cpus.ok() || cpus->empty()) return 0;
  constexpr int kTurns = 4000;
  std::atomic<int> turn{0};
  auto play = [&](int who) {
    if (!BindThread({cpus->front()}).ok()) return;
    for (int i = who; i < kTurns; i += 2) {
      while (turn.load(std::memory_order_acquire) != i) sched_yield();
      turn.store(i + 1, std::memory_order_release);
    }
  };
  const double start = Now();
  std::thread first(play, 0), second(play, 1);
  first.join(), second.join();
  return (Now() - start) / kTurns;
}

absl::Status MeasureCores(Calibration& calibration) {
  std::vector<std::byte> left(kCacheBytes), right = left, out = left;
  const net::ReduceFn reduce_fn =
      ReduceFor(collectives::DataType::kFloat32, collectives::ReduceOp::kSum);
  auto per_byte = [&](auto&& once) -> absl::StatusOr<double> {
    return Least(kShortRuns, [&]() -> absl::StatusOr<double> {
      const double start = Now();
      for (int i = 0; i < 8; ++i) once();
      return (Now() - start) / (8.0 * kCacheBytes);
    });
  };
  WEFT_ASSIGN_OR_RETURN(calibration.copy_byte,
                        per_byte([&] { std::memcpy(out.data(), left.data(), kCacheBytes); }));
  WEFT_ASSIGN_OR_RETURN(const double reduce, per_byte([&] {
                          reduce_fn(out.data(), left.data(), right.data(), kCacheBytes);
                        }));
  calibration.reduce_byte = std::max(reduce - calibration.copy_byte, reduce / 10);
  if (calibration.switch_rank > 0) return absl::OkStatus();  // by ranks
  WEFT_ASSIGN_OR_RETURN(calibration.switch_rank,
                        Least(kLongRuns, []() -> absl::StatusOr<double> { return SwitchRank(); }));
  return absl::OkStatus();
}

// The first line of /proc/stat: "cpu", and ticks of all cores.
std::string Stat() { return FirstLine("/proc/stat"); }

}  // namespace

double BusyCores(const std::string& before, const std::string& after, int cores) {
  double all = 0, idle = 0;
  const std::vector<std::string> first = absl::StrSplit(before, ' ', absl::SkipEmpty());
  const std::vector<std::string> last = absl::StrSplit(after, ' ', absl::SkipEmpty());
  // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
  constexpr size_t kIdle = 4, kWaits = 5, kSteal = 8;
  if (first.size() <= kSteal || last.size() != first.size()) return 0;
  for (size_t i = 1; i <= kSteal; ++i) {
    double from = 0, to = 0;
    if (!absl::SimpleAtod(first[i], &from) || !absl::SimpleAtod(last[i], &to)) return 0;
    all += to - from;
    if (i == kIdle || i == kWaits) idle += to - from;
  }
  return all > 0 ? std::clamp((all - idle) / all, 0.0, 1.0) * cores : 0;
}

std::string Calibrated::Trouble() const {
  std::string text;
  if (busy_cores > kBusyMost) {
    text = absl::StrFormat("other programs take %.1f of %d cores (load average %.1f)", busy_cores,
                           cores, load);
  }
  const auto most =
      std::max_element(spread.begin(), spread.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != spread.end() && most->second > kSpreadMost) {
    absl::StrAppendFormat(&text, "%s%s differs by a factor of %.1f between most of %d passes",
                          text.empty() ? "" : "; ", most->first, most->second, kPasses);
  }
  return text;
}

void Calibrated::TakeLeast(absl::Span<const Calibration> passes) {
  costs = passes.front();
  spread.clear();
  std::vector<std::vector<std::pair<std::string, double>>> numbers;  // by pass
  for (const Calibration& pass : passes) numbers.push_back(Numbers(pass));
  size_t field = 0;
  for (const auto& [name, cost] : Fields(costs)) {
    std::vector<double> values;
    for (const auto& pass : numbers) values.push_back(pass[field].second);
    ++field;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    *cost = *least;
    if (*least != *most) spread.emplace_back(name, UpperMedian(values) / *least);
  }
}

absl::StatusOr<Calibrated> Calibrate(job::Joined& job, Control& control, const Calibration& before,
                                     bool force) {
  const int ranks = control.ranks();
  if (ranks < 2) {
    return absl::InvalidArgumentError(
        "--calibrate measures between ranks: two or more, as with --ranks 2");
  }
  Calibrated out;
  out.cores = Cores();
  if (control.rank() == 0) {  // the others wait for it at the store
    const std::string ticks = Stat();
    absl::SleepFor(kLook);
    out.busy_cores = BusyCores(ticks, Stat(), out.cores);
    if (double load = 0; getloadavg(&load, 1) == 1) out.load = load;
  }
  const bool refuses = out.busy_cores > kBusyMost && !force;
  WEFT_ASSIGN_OR_RETURN(const auto refused, control.Exchange({refuses ? 1.0 : 0.0}));
  if (refused[0][0] != 0) return out;
  out.measured = true;
  std::array<Calibration, kPasses> passes;
  passes.fill(before);
  for (Calibration& pass : passes) pass.switch_rank = 0;  // not measured
  bool one_host = true;
  std::vector<Rank> everybody;
  for (int r = 0; r < ranks; ++r) {
    everybody.emplace_back(r);
    one_host = one_host && job.endpoint->host(Rank(r)) == job.endpoint->host(Rank(0));
  }
  const std::string wanted = job.endpoint->settings().Text("transport");
  for (size_t t = 0; t < collectives::planner::kTransportNames.size(); ++t) {
    const std::string name = collectives::planner::kTransportNames[t];
    const bool by_auto = wanted == "auto" && (name == "tcp" || (name == "shm" && one_host));
    if (name != wanted && !by_auto) continue;
    auto options_of = [&](absl::string_view what) -> absl::StatusOr<collectives::EndpointOptions> {
      collectives::EndpointOptions options;
      options.rank = Rank(control.rank());
      options.world_size = ranks;
      options.store = job.store.get();
      options.job = absl::StrCat("weft-bw/calibrate/", what);
      options.settings = job.endpoint->settings();
      WEFT_RETURN_IF_ERROR(options.settings.Set("transport", name, "--calibrate"));
      return options;
    };
    WEFT_ASSIGN_OR_RETURN(collectives::EndpointOptions options, options_of(name));
    WEFT_ASSIGN_OR_RETURN(auto endpoint, collectives::Endpoint::Create(std::move(options)));
    WEFT_ASSIGN_OR_RETURN(auto group, Communicator::Create(endpoint, "calibrate", everybody));
    for (int pass = 0; pass < kPasses; ++pass) {
      auto links = MeasureLinks(*group);
      if (!links.ok()) return Annotate(links.status(), absl::StrCat("calibrate ", name));
      passes[static_cast<size_t>(pass)].links[t] = *links;
    }
    if (name != "shm") continue;
    WEFT_ASSIGN_OR_RETURN(options, options_of("segment"));
    WEFT_RETURN_IF_ERROR(options.settings.Set("shm.single_copy_min", "0", "--calibrate"));
    WEFT_RETURN_IF_ERROR(options.settings.Set("wait.spin", "0", "--calibrate"));
    WEFT_ASSIGN_OR_RETURN(auto copying, collectives::Endpoint::Create(std::move(options)));
    WEFT_ASSIGN_OR_RETURN(auto pairs, Communicator::Create(copying, "calibrate", everybody));
    for (int pass = 0; pass < kPasses; ++pass) {
      Calibration& one = passes[static_cast<size_t>(pass)];
      WEFT_ASSIGN_OR_RETURN(one.segment_byte, MeasureSegment(*pairs));
      WEFT_ASSIGN_OR_RETURN(const std::optional<double> hop, MeasureSwitch(*pairs, control));
      if (hop.has_value()) one.switch_rank = std::max(*hop - one.links[t].latency, 1.0);
    }
  }
  if (control.rank() == 0) {
    for (Calibration& pass : passes) WEFT_RETURN_IF_ERROR(MeasureCores(pass));
    out.TakeLeast(passes);
    if (const std::optional<Bytes> cache = topology::CoreCache(); cache.has_value()) {
      out.costs.cache_kib = static_cast<double>(cache->count()) / 1024;
    }
  }
  // The others leave when rank 0 is done.
  WEFT_RETURN_IF_ERROR(control.Exchange({0}).status());
  return out;
}

}  // namespace weft::bw
