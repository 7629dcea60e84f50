// Figures of single controllers: Swift's incast, DCQCN's fixed point, the hybrid's all-to-all.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "net/cc/swift.h"
#include "tools/cc/figures.h"
#include "tools/cc/run.h"

namespace weft::cc {
namespace {

using net::multipath::SimulatedOptions;

// Means over all connections of a value of theirs, over time.
class Series {
 public:
  explicit Series(absl::Duration period) : period_(period) {}
  // `value` of one connection at `now`; the same `now` for all of a round.
  void Add(absl::Duration now, double value) {
    if (!times_.empty() && times_.back() == now) {
      sums_.back() += value;
      ++counts_.back();
      return;
    }
    times_.push_back(now);
    sums_.push_back(value);
    counts_.push_back(1);
  }
  Line ToLine(std::string name) const {
    Line line;
    line.name = std::move(name);
    for (size_t i = 0; i < times_.size(); ++i) {
      line.points.emplace_back(absl::ToDoubleMilliseconds(times_[i]), sums_[i] / counts_[i]);
    }
    return line;
  }
  // Mean and standard deviation of what lies between two shares of the time.
  std::pair<double, double> Between(double from, double until) const {
    double sum = 0, squares = 0, count = 0;
    absl::Duration end = times_.empty() ? absl::ZeroDuration() : times_.back();
    for (size_t i = 0; i < times_.size(); ++i) {
      if (times_[i] < end * from || times_[i] > end * until) continue;
      double value = sums_[i] / counts_[i];
      sum += value;
      squares += value * value;
      ++count;
    }
    if (count == 0) return {0, 0};
    double mean = sum / count;
    return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
  }
  // Growth a second between two shares of the time, of one connection on average.
  double Slope(double from, double until) const {
    if (times_.size() < 2) return 0;
    auto at = [&](double share) {
      return static_cast<size_t>(share * static_cast<double>(times_.size() - 1));
    };
    size_t a = at(from), b = at(until);
    double seconds = absl::ToDoubleSeconds(times_[b] - times_[a]);
    return seconds > 0 ? (sums_[b] / counts_[b] - sums_[a] / counts_[a]) / seconds : 0;
  }
  absl::Duration period() const { return period_; }

 private:
  absl::Duration period_;
  std::vector<absl::Duration> times_;
  std::vector<double> sums_;
  std::vector<int> counts_;
};

// ---- Swift

constexpr double kLinkGbps = 400;
// Shares of the time between which all flows send.
constexpr double kFrom = 0.15, kUntil = 0.45;
// Two cables of 1 us each way; a packet of 4,160 bytes and an acknowledgement of 64 are sent twice.
const absl::Duration kIncastRtt = absl::Nanoseconds(4000 + 2 * 83.2 + 2 * 1.28);

// The queueing delay at which N equal windows of w packets are what the path and the queue hold:
// N w packet = C target(w).
double PredictedDelay(int flows, const net::SwiftParameters& parameters) {
  net::PathFacts facts{.base_rtt = kIncastRtt,
                       .bandwidth = Bandwidth::GigabitsPerSecond(kLinkGbps),
                       .packet = Bytes(4160),
                       .hops = 1};
  double low = 1e-4, high = 1e4;
  for (int i = 0; i < 100; ++i) {
    double middle = std::sqrt(low * high);
    absl::Duration target = net::SwiftTarget(facts, parameters, middle);
    bool is_too_much =
        flows * middle * 4160 > static_cast<double>((facts.bandwidth * target).count());
    (is_too_much ? high : low) = middle;
  }
  absl::Duration target = net::SwiftTarget(facts, parameters, low);
  return absl::ToDoubleMicroseconds(target - kIncastRtt);
}

}  // namespace

absl::StatusOr<Figure> SwiftIncast() {
  Figure figure;
  figure.table =
      Header({"flows", "goodput while all send", "until the last has ended", "queueing delay, us",
              "by the fixed point", "its deviation", "most KB", "sent again"});
  LinePlot plot{
      .title = "Swift: queueing delay at one receiver of 400 Gb/s", .x_name = "ms", .y_name = "us"};
  for (auto [flows, bytes] : {std::pair{100, "8MB"}, std::pair{1000, "1MB"}}) {
    Scenario scenario;
    scenario.fabric = "leaf-spine:leaves=1,hosts_per_leaf=1001,spines=1,delay=1us";
    scenario.workload = absl::StrCat("incast:fan_in=", flows, ",bytes=", bytes);
    scenario.hops = 1;
    SimulatedOptions protocol;
    // All begin at once: from a first window that fits them, as the paper's long flows.
    protocol.controller = *net::ParseController(absl::StrCat("swift:window_start=", 1.0 / flows));
    protocol.policy = net::PolicyKind::kSingle;
    Series delay(absl::Microseconds(20)), sent(absl::Microseconds(20));
    protocol.trace.period = delay.period();
    protocol.trace.visit = [&](absl::Duration now, int, const net::multipath::Sender& sender) {
      absl::Duration rtt = sender.flight().rtt().latest();
      if (rtt > absl::ZeroDuration()) {
        delay.Add(now, absl::ToDoubleMicroseconds(rtt - kIncastRtt));
      }
      auto packets = sender.statistics().packets - sender.statistics().retransmissions;
      sent.Add(now, static_cast<double>(packets));
    };
    WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, protocol));
    double predicted = PredictedDelay(flows, net::SwiftParameters());
    auto [mean, deviation] = delay.Between(kFrom, kUntil);
    double goodput = flows * sent.Slope(kFrom, kUntil) * 4096 / (kLinkGbps * 1e9 / 8);
    absl::StrAppendFormat(&figure.table, "| %d | %.3f | %.3f | %.2f | %.2f | %.2f | %.0f | %d |\n",
                          flows, goodput, outcome.goodput, mean, predicted, deviation,
                          outcome.queue_max_kb, outcome.retransmissions);
    plot.lines.push_back(delay.ToLine(absl::StrCat(flows, " flows")));
    Line theory{absl::StrCat("fixed point, ", flows), {}, true};
    theory.points = {{0, predicted}, {plot.lines.back().points.back().first, predicted}};
    plot.lines.push_back(std::move(theory));
  }
  figure.pictures.emplace_back("swift-incast", std::move(plot));
  return figure;
}

// ---- DCQCN

namespace {

constexpr double kDcqcnGbps = 40;

// Queues of the fluid model, KB: docs beside the table. Flows: 2, 4, 8.
struct FixedPoint {
  int flows;
  double queue_kb;
};
constexpr std::array kFixedPoints = {FixedPoint{2, 20.2}, FixedPoint{4, 41.8}, FixedPoint{8, 93.8}};

Scenario DcqcnScenario() {
  Scenario scenario;
  scenario.fabric = "leaf-spine:leaves=1,hosts_per_leaf=16,spines=1,delay=1us,bandwidth=40Gbps";
  scenario.hops = 1;
  scenario.packet.payload = Bytes(1000);
  scenario.packet.header = Bytes(0);
  scenario.packet.ecn = {.enabled = true,
                         .min = Bytes(5'000),
                         .max = Bytes(200'000),
                         .probability_max = 0.01,
                         .reference = Bandwidth()};
  return scenario;
}

SimulatedOptions DcqcnProtocol() {
  SimulatedOptions protocol;
  protocol.controller.kind = net::ControllerKind::kDcqcn;
  protocol.policy = net::PolicyKind::kSingle;
  protocol.timeout_min = absl::Milliseconds(10);
  return protocol;
}

topology::Operation Transfer(int source, Bytes bytes, absl::Duration start) {
  // Host 0 of the only leaf receives; hosts are the first nodes.
  topology::Operation one;
  one.source.host = NodeId(source);
  one.target.host = NodeId(0);
  one.bytes = bytes;
  one.start = start;
  return one;
}

double RateGbps(const net::multipath::Sender& sender) {
  return sender.controller().rate().gigabits_per_second();
}

absl::Status AddConvergence(Figure& figure) {
  Scenario scenario = DcqcnScenario();
  topology::Workload workload;
  for (int i = 0; i < 4; ++i) {
    workload.Add(Transfer(i + 1, Bytes(i == 0 ? 180'000'000 : 150'000'000 - 30'000'000 * i),
                          absl::Milliseconds(20) * i));
  }
  scenario.built = workload;
  SimulatedOptions protocol = DcqcnProtocol();
  LinePlot plot{.title = "DCQCN: flows that begin 20 ms apart", .x_name = "ms", .y_name = "Gb/s"};
  plot.lines.resize(4);
  for (int i = 0; i < 4; ++i)
    plot.lines[static_cast<size_t>(i)].name = absl::StrCat("flow ", i + 1);
  protocol.trace.period = absl::Microseconds(200);
  protocol.trace.visit = [&](absl::Duration now, int id, const net::multipath::Sender& sender) {
    if (sender.outstanding() == 0) return;
    plot.lines[static_cast<size_t>(id)].points.emplace_back(absl::ToDoubleMilliseconds(now),
                                                            RateGbps(sender));
  };
  WEFT_RETURN_IF_ERROR(RunScenario(scenario, protocol).status());
  figure.pictures.emplace_back("dcqcn-convergence", std::move(plot));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Figure> DcqcnFixedPoint() {
  Figure figure;
  figure.table = Header({"flows", "mean queue, KB", "by the fluid model", "mean rate, Gb/s",
                         "C / N", "Jain's index"});
  for (const FixedPoint& point : kFixedPoints) {
    Scenario scenario = DcqcnScenario();
    topology::Workload workload;
    for (int i = 0; i < point.flows; ++i) {
      workload.Add(Transfer(i + 1, Bytes(600'000'000 / point.flows), absl::ZeroDuration()));
    }
    scenario.built = workload;
    SimulatedOptions protocol = DcqcnProtocol();
    // Each sample of the delay is that of a packet that has crossed the queue.
    Series delay(absl::Microseconds(50)), rate(absl::Microseconds(50));
    std::vector<double> rates(static_cast<size_t>(point.flows));
    protocol.trace.period = delay.period();
    const absl::Duration base = absl::Nanoseconds(4000 + 2 * 200 + 2 * 12.8);
    protocol.trace.visit = [&](absl::Duration now, int id, const net::multipath::Sender& sender) {
      if (sender.outstanding() == 0) return;
      delay.Add(now, absl::ToDoubleSeconds(sender.flight().rtt().latest() - base) * kDcqcnGbps *
                         1e9 / 8 / 1e3);
      rate.Add(now, RateGbps(sender));
      if (now > absl::Milliseconds(40) && now < absl::Milliseconds(110)) {
        rates[static_cast<size_t>(id)] += RateGbps(sender);
      }
    };
    WEFT_RETURN_IF_ERROR(RunScenario(scenario, protocol).status());
    double sum = 0, squares = 0;
    for (double one : rates) {
      sum += one;
      squares += one * one;
    }
    absl::StrAppendFormat(&figure.table, "| %d | %.1f | %.1f | %.2f | %.2f | %.4f |\n", point.flows,
                          delay.Between(0.3, 0.9).first, point.queue_kb,
                          rate.Between(0.3, 0.9).first, kDcqcnGbps / point.flows,
                          sum * sum / (point.flows * squares));
  }
  WEFT_RETURN_IF_ERROR(AddConvergence(figure));
  return figure;
}

// ---- The hybrid

absl::StatusOr<Figure> HybridAllToAll() {
  Figure figure;
  figure.table =
      Header({"uplinks", "policy", "controller", "bus bandwidth, of the bound", "p50, us",
              "p99, us", "longest mean queue, KB", "PFC paused, us", "marks", "dropped"});
  // Spines; and the share of a NIC that the uplinks leave to an all-to-all of 4 leaves.
  for (auto [spines, name, share] : {std::tuple{16, "1:1", 1.0}, std::tuple{8, "2:1", 0.656}}) {
    for (net::PolicyKind policy : {net::PolicyKind::kSingle, net::PolicyKind::kReps}) {
      for (const char* controller : {"dcqcn", "swift", "swift:window_start=0.1", "hybrid",
                                     "hybrid:window_start=0.1", "nscc"}) {
        Scenario scenario;
        scenario.fabric =
            absl::StrCat("leaf-spine:leaves=4,hosts_per_leaf=16,spines=", spines, ",delay=1us");
        scenario.workload = "full_mesh:bytes=256KiB";
        scenario.packet.ecn = {.enabled = true,
                               .min = Bytes(100'000),
                               .max = Bytes(400'000),
                               .reference = Bandwidth()};
        scenario.packet.pfc.enabled = true;
        scenario.packet.switch_buffer = Bytes(32'000'000);
        SimulatedOptions protocol;
        WEFT_ASSIGN_OR_RETURN(protocol.controller, net::ParseController(controller));
        protocol.policy = policy;
        WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, protocol));
        absl::StrAppendFormat(&figure.table,
                              "| %s | %s | %s | %.3f | %.0f | %.0f | %.0f | %.0f | %d | %d |\n",
                              name, net::ToString(policy), controller, outcome.goodput / share,
                              outcome.fct_p50_us, outcome.fct_p99_us, outcome.queue_mean_kb,
                              outcome.paused_us, outcome.marked, outcome.dropped);
      }
    }
  }
  return figure;
}

}  // namespace weft::cc
