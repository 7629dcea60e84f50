#include "tools/bw/link/measure.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/bw/link/ping.h"
#include "tools/bw/link/steps.h"
#include "tools/bw/link/stream.h"

namespace weft::link_bw {
namespace {

// What is watched while a test runs. The window begins with the first flow that is in it and ends
// with the first that leaves it.
class Window {
 public:
  Window(MeasuredLinks& links, int rank) : links_(links), lanes_(links, rank) {}
  void See(Phase phase) {
    if (phase != Phase::kBefore && !begun_) Begin();
    if (phase == Phase::kAfter && !ended_) End();
  }
  void Begin() {
    begun_ = true;
    lanes_.Start();
    links_.StartUsage();
  }
  void Look() {
    if (begun_ && !ended_) lanes_.Look(links_.now());
  }
  void End() {
    if (!begun_) Begin();
    ended_ = true;
    usage_ = links_.StopUsage();
    uses_ = lanes_.Stop();
  }
  const Usage& usage() const { return usage_; }
  const std::vector<LaneUse>& lanes() const { return uses_; }

 private:
  MeasuredLinks& links_;
  LaneWatch lanes_;
  bool begun_ = false, ended_ = false;
  Usage usage_;
  std::vector<LaneUse> uses_;
};

// Percentiles and the like of nanoseconds, in microseconds; `factor` 0.5: half of them.
void SetTimes(std::vector<int64_t> times, double factor, double percentile, FlowResult& result) {
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  const double unit = factor / 1e3;
  const auto count = static_cast<double>(times.size());
  const auto at = [&](double percent) {
    const double rank = std::ceil(percent / 100 * count);
    return static_cast<double>(times[static_cast<size_t>(std::max(rank - 1, 0.0))]) * unit;
  };
  result.messages = static_cast<int64_t>(times.size());
  result.min_us = at(0);
  result.max_us = at(100);
  result.typical_us = at(50);
  result.p99_us = at(99);
  result.p999_us = at(99.9);
  result.percentile_us = at(percentile);
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  result.mean_us = sum / count * unit;
  double squares = 0;
  for (int64_t time : times) {
    const double off = static_cast<double>(time) * unit - result.mean_us;
    squares += off * off;
  }
  result.deviation_us = std::sqrt(squares / count);
}

// Until all of them are done.
template <typename... Lists>
absl::Status RunAll(MeasuredLinks& links, Window& window, Lists&... lists) {
  absl::Status status;
  bool done = false;
  const auto pump = [&](auto& list) {
    for (auto& one : list) {
      if (status.ok() && !one->done()) status = one->Pump();
      window.See(one->phase());
      done &= one->done();
    }
  };
  while (status.ok()) {
    done = true;
    (pump(lists), ...);
    if (done || !status.ok()) break;
    window.Look();
    status = links.Turn();
  }
  return status;
}

absl::Status Barrier(Bootstrap& bootstrap, MeasuredLinks& links) {
  return bootstrap.AllGather("", [&] { links.Serve(); }).status();
}

absl::StatusOr<std::vector<FlowResult>> RunStreams(Bootstrap& bootstrap, MeasuredLinks& links,
                                                   const Load& load, const std::vector<Flow>& flows,
                                                   Bytes size, Window& window) {
  std::vector<std::unique_ptr<StreamSender>> senders;
  std::vector<std::unique_ptr<StreamReceiver>> receivers;
  for (const Flow& flow : flows) {
    if (flow.to != bootstrap.rank()) continue;
    WEFT_ASSIGN_OR_RETURN(auto receiver, StreamReceiver::Create(links, flow.from, size, load));
    receivers.push_back(std::move(receiver));
  }
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap, links));
  for (const Flow& flow : flows) {
    if (flow.from != bootstrap.rank()) continue;
    WEFT_ASSIGN_OR_RETURN(auto sender, StreamSender::Create(links, flow.to, size, load));
    senders.push_back(std::move(sender));
  }
  WEFT_RETURN_IF_ERROR(RunAll(links, window, senders, receivers));
  std::vector<FlowResult> results;
  for (const auto& receiver : receivers) {
    const StreamResult stream = receiver->result();
    FlowResult result;
    result.from = receiver->from();
    result.to = bootstrap.rank();
    result.messages = stream.messages;
    if (stream.seconds > 0) {
      result.bytes_per_second = static_cast<double>(stream.bytes) / stream.seconds;
      result.messages_per_second = static_cast<double>(stream.messages) / stream.seconds;
    }
    result.peak = std::max(stream.peak, result.bytes_per_second);
    result.wrong = stream.wrong;
    results.push_back(result);
  }
  return results;
}

absl::StatusOr<std::vector<FlowResult>> RunPings(Bootstrap& bootstrap, MeasuredLinks& links,
                                                 const Load& load, const std::vector<Flow>& flows,
                                                 Bytes size, Window& window) {
  std::vector<std::unique_ptr<Ping>> pings;
  for (bool leads : {false, true}) {
    for (const Flow& flow : flows) {
      if ((leads ? flow.from : flow.to) != bootstrap.rank()) continue;
      WEFT_ASSIGN_OR_RETURN(auto ping,
                            Ping::Create(links, leads ? flow.to : flow.from, size, load, leads));
      pings.push_back(std::move(ping));
    }
    if (!leads) WEFT_RETURN_IF_ERROR(Barrier(bootstrap, links));
  }
  WEFT_RETURN_IF_ERROR(RunAll(links, window, pings));
  std::vector<FlowResult> results;
  for (const auto& ping : pings) {
    if (!ping->leads()) continue;
    FlowResult result;
    result.from = bootstrap.rank();
    result.to = ping->peer();
    SetTimes(ping->trips(), 0.5, load.percentile, result);
    if (result.mean_us > 0) {
      result.messages_per_second = 1e6 / result.mean_us;
      result.bytes_per_second = result.messages_per_second * static_cast<double>(size.count());
      result.peak = result.bytes_per_second;
    }
    results.push_back(result);
  }
  return results;
}

// The slowest rank's time of `count` operations, in nanoseconds.
absl::StatusOr<int64_t> TimeSteps(Bootstrap& bootstrap, MeasuredLinks& links, Steps& steps,
                                  int64_t count) {
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap, links));
  const int64_t start = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(steps.Run(count));
  const int64_t mine = SystemClock::Nanoseconds() - start;
  WEFT_ASSIGN_OR_RETURN(auto all, bootstrap.AllGatherJson(mine, [&] { links.Serve(); }));
  int64_t longest = 1;
  for (const nlohmann::json& one : all) longest = std::max(longest, one.get<int64_t>());
  return longest;
}

absl::StatusOr<std::vector<FlowResult>> RunSteps(Bootstrap& bootstrap, MeasuredLinks& links,
                                                 const Load& load, Bytes size, Window& window,
                                                 Row& row) {
  WEFT_ASSIGN_OR_RETURN(auto steps,
                        Steps::Create(links, load, size, bootstrap.rank(), bootstrap.ranks()));
  const Lengths lengths = Lengths::Of(load);
  int64_t warmup = 1, count = lengths.iterations;
  if (count > 0) warmup = lengths.warmup_iterations;
  WEFT_ASSIGN_OR_RETURN(int64_t took, TimeSteps(bootstrap, links, *steps, warmup));
  while (count == 0) {
    if (took >= lengths.warmup / 4) {
      count = std::max<int64_t>(lengths.window * warmup / took, 1);
      break;
    }
    warmup *= 4;
    WEFT_ASSIGN_OR_RETURN(took, TimeSteps(bootstrap, links, *steps, warmup));
  }
  steps->Forget();
  window.Begin();
  WEFT_ASSIGN_OR_RETURN(took, TimeSteps(bootstrap, links, *steps, count));
  window.End();
  row.operations = count;
  row.operation_us = static_cast<double>(took) / 1e3 / static_cast<double>(count);
  FlowResult result;
  result.from = bootstrap.rank();
  result.to = (bootstrap.rank() + 1) % bootstrap.ranks();
  SetTimes(steps->send_times(), 1, load.percentile, result);
  result.bytes_per_second =
      static_cast<double>(steps->sent_bytes() * count) / (static_cast<double>(took) / 1e9);
  result.messages_per_second =
      static_cast<double>(result.messages) / (static_cast<double>(took) / 1e9);
  result.peak = result.bytes_per_second;
  return std::vector<FlowResult>{result};
}

RankUse UseOf(const RankUse& host, const Usage& usage, int rank, bool sleeps) {
  RankUse use = host;
  use.rank = rank;
  use.sleeps = sleeps;
  use.busy = usage.busy;
  use.core = usage.core;
  use.kernel = usage.kernel;
  use.process = usage.process;
  use.preempted = usage.preempted;
  return use;
}

// How long a size may take the ranks of a flow, while others, or those of a faster flow, wait.
absl::Duration LongestOf(const Load& load) {
  return load.iterations > 0 ? kDurationMost : 2 * load.duration;
}

// From what every rank says of itself, and the flows that this is about.
void PutTogether(const std::vector<nlohmann::json>& parts, const std::vector<Flow>& flows,
                 Row& row) {
  for (const nlohmann::json& part : parts) {
    for (const nlohmann::json& flow : part.at("flows")) row.flows.push_back(flow);
    for (const nlohmann::json& one : part.at("lanes")) {
      LaneUse lane = one;
      // Other links are those of other rounds, and the way back of pings.
      const bool wanted =
          std::find(flows.begin(), flows.end(), Flow{lane.from, lane.to}) != flows.end();
      if (wanted) row.lanes.push_back(std::move(lane));
    }
    row.ranks.push_back(part.at("rank"));
  }
  std::erase_if(row.ranks, [&](const RankUse& rank) {
    return std::none_of(flows.begin(), flows.end(), [&](const Flow& flow) {
      return flow.from == rank.rank || flow.to == rank.rank;
    });
  });
  for (RankUse& rank : row.ranks) {
    for (const FlowResult& flow : row.flows) {
      if (flow.from == rank.rank) rank.sent += flow.bytes_per_second;
      if (flow.to == rank.rank) rank.received += flow.bytes_per_second;
    }
  }
}

}  // namespace

double Row::bytes_per_second() const {
  double sum = 0;
  for (const FlowResult& flow : flows) sum += flow.bytes_per_second;
  return sum;
}

double Row::messages_per_second() const {
  double sum = 0;
  for (const FlowResult& flow : flows) sum += flow.messages_per_second;
  return sum;
}

double Row::peak() const {
  double sum = 0;
  for (const FlowResult& flow : flows) sum += flow.peak;
  return sum;
}

double Row::cpu_seconds_per_gigabyte() const {
  double cores = 0;
  for (const RankUse& rank : ranks) cores += rank.process;
  const double gigabytes = bytes_per_second() / 1e9;
  return gigabytes > 0 ? cores / gigabytes : 0;
}

const FlowResult& Row::slowest() const {
  return *std::max_element(flows.begin(), flows.end(), [](const auto& a, const auto& b) {
    return a.percentile_us < b.percentile_us;
  });
}

absl::StatusOr<Row> MeasureSize(Bootstrap& bootstrap, MeasuredLinks& links, const Load& load,
                                const std::vector<Flow>& flows, Bytes size, const RankUse& host) {
  Row row;
  row.size = size;
  row.depth = DepthFor(load, size);
  Window window(links, bootstrap.rank());
  std::vector<FlowResult> results;
  switch (load.test) {
    case Test::kBandwidth:
    case Test::kRate: {
      WEFT_ASSIGN_OR_RETURN(results, RunStreams(bootstrap, links, load, flows, size, window));
      break;
    }
    case Test::kLatency: {
      WEFT_ASSIGN_OR_RETURN(results, RunPings(bootstrap, links, load, flows, size, window));
      break;
    }
    case Test::kSteps: {
      WEFT_ASSIGN_OR_RETURN(results, RunSteps(bootstrap, links, load, size, window, row));
      break;
    }
  }
  const nlohmann::json mine = {
      {"flows", results},
      {"lanes", window.lanes()},
      {"rank", UseOf(host, window.usage(), bootstrap.rank(), load.events)}};
  WEFT_ASSIGN_OR_RETURN(auto parts, bootstrap.AllGatherJson(
                                        mine, [&] { links.Serve(); }, LongestOf(load)));
  PutTogether(parts, flows, row);
  if (load.test != Test::kLatency) row.limit = FindLimit(row.ranks, row.lanes, row.depth);
  return row;
}

}  // namespace weft::link_bw
