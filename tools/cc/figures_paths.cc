// Figures of sprayed connections: MSwift, dead links, NSCC with REPS.
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/cc/figures.h"
#include "tools/cc/run.h"
#include "topology/fabric/load.h"
#include "topology/sim/workloads/registry.h"

namespace weft::cc {
namespace {
using net::PolicyKind;
using net::multipath::SimulatedOptions;

// Path p of a connection takes the p-th spine: as where a planner has chosen the source ports.
class ByPathNumber final : public topology::PathHash {
 public:
  size_t Choose(NodeId /*at*/, const Flow& flow, absl::Span<const LinkId> next) const override {
    return flow.source_port % next.size();
  }
};

// The share of its link that a sprayed flow gets while the neighbour sends.
absl::StatusOr<double> OneCongestedPath(int paths, bool median, bool has_neighbour) {
  Scenario scenario;
  scenario.fabric =
      absl::StrCat("leaf-spine:leaves=2,hosts_per_leaf=2,spines=", paths, ",delay=1us");
  topology::Workload workload;
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric, topology::LoadFabric(scenario.fabric));
  auto endpoints = fabric.Endpoints();
  for (size_t i = 0; i < (has_neighbour ? 2 : 1); ++i) {
    topology::Operation one;
    one.source = endpoints[i];
    one.target = endpoints[i + 2];
    one.bytes = Bytes(i == 0 ? 100'000'000 : 400'000'000);
    workload.Add(one);
  }
  scenario.built = workload;
  const ByPathNumber hash;
  scenario.packet.hash = &hash;
  // While the neighbour sends; acknowledgements take the first path.
  scenario.packet.limit = absl::Milliseconds(8);
  SimulatedOptions protocol;
  protocol.controller.kind = median ? net::ControllerKind::kMswift : net::ControllerKind::kSwift;
  protocol.policy = PolicyKind::kRoundRobin;
  protocol.paths = paths;
  protocol.vary = [](uint32_t source, SimulatedOptions& options) {
    if (source != 1) return;
    options.controller.kind = net::ControllerKind::kFixed;
    options.controller.parameters = {{"window", 3.0}};
    options.policy = PolicyKind::kPlanned;
    options.planned = {1};
  };
  int64_t sent = 0;
  absl::Duration at;
  protocol.trace.period = absl::Microseconds(20);
  protocol.trace.visit = [&](absl::Duration now, int id, const net::multipath::Sender& sender) {
    if (id != 0 || sender.outstanding() == 0) return;
    at = now;
    sent = sender.statistics().packets - sender.statistics().retransmissions;
  };
  WEFT_RETURN_IF_ERROR(RunScenario(scenario, protocol).status());
  return static_cast<double>(sent) * 4096 / (50e9 * absl::ToDoubleSeconds(at));
}

}  // namespace

// One flow sprayed evenly over n spines. On one of them a neighbour's flow, which answers to
// nothing, keeps a queue of two round trips.
absl::StatusOr<Figure> MedianOfDelays() {
  Figure figure;
  figure.table =
      Header({"paths", "share q of late samples", "Swift", "MSwift", "without the neighbour"});
  LinePlot plot{.title = "One congested path of n: goodput, share of the link",
                .x_name = "paths n",
                .y_name = "goodput",
                .lines = {},
                .y_max = 1.05};
  plot.lines = {{"Swift", {}, false}, {"MSwift", {}, false}};
  for (int paths : {2, 4, 8, 16, 32}) {
    double goodput[3] = {};
    for (int run = 0; run < 3; ++run) {
      WEFT_ASSIGN_OR_RETURN(goodput[run], OneCongestedPath(paths, run == 1, run < 2));
      if (run < 2) plot.lines[static_cast<size_t>(run)].points.emplace_back(paths, goodput[run]);
    }
    absl::StrAppendFormat(&figure.table, "| %d | %.3f | %.3f | %.3f | %.3f |\n", paths, 1.0 / paths,
                          goodput[0], goodput[1], goodput[2]);
  }
  figure.pictures.emplace_back("median", std::move(plot));
  return figure;
}

absl::StatusOr<Figure> DeadLink() {
  Figure figure;
  figure.table = Header({"policy", "leaves dead paths", "mean, us", "longest, us",
                         "lost on the link", "last path left after, us", "sent again in all"});
  const absl::Duration dies = absl::Microseconds(100);
  for (PolicyKind policy : {PolicyKind::kRandom, PolicyKind::kReps, PolicyKind::kPenalty,
                            PolicyKind::kTwoChoices, PolicyKind::kPlb, PolicyKind::kSingle}) {
    for (bool leaves : {false, true}) {
      Scenario scenario;
      scenario.fabric = "leaf-spine:leaves=2,hosts_per_leaf=16,spines=16,delay=1us";
      scenario.workload = "permutation:bytes=20MB";
      scenario.broken = "leaf0>spine3";
      scenario.broken_at = dies;
      scenario.packet.limit = absl::Milliseconds(20);
      scenario.packet.ecn = {
          .enabled = true, .probability_max = 1, .min_round_trips = 0.2, .max_round_trips = 0.8};
      SimulatedOptions protocol;
      protocol.controller.kind = net::ControllerKind::kNscc;
      protocol.policy = policy;
      protocol.leaves_dead_paths = leaves;
      absl::Duration last = dies;
      std::vector<int64_t> seen;
      protocol.trace.period = absl::Microseconds(2);
      protocol.trace.visit = [&](absl::Duration now, int id, const net::multipath::Sender& sender) {
        if (seen.size() <= static_cast<size_t>(id)) seen.resize(static_cast<size_t>(id) + 1);
        int64_t& before = seen[static_cast<size_t>(id)];
        if (now > dies && sender.statistics().paths_left > before) last = std::max(last, now);
        before = sender.statistics().paths_left;
      };
      WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, protocol));
      std::string longest = outcome.unfinished > 0 ? absl::StrCat(outcome.unfinished, " never end")
                                                   : absl::StrFormat("%.0f", outcome.fct_max_us);
      std::string left = leaves && last > dies
                             ? absl::StrFormat("%.0f", absl::ToDoubleMicroseconds(last - dies))
                             : "-";
      absl::StrAppendFormat(&figure.table, "| %s | %s | %.0f | %s | %d | %s | %d |\n",
                            net::ToString(policy), leaves ? "yes" : "no", outcome.fct_mean_us,
                            longest, outcome.lost_on_broken, left, outcome.retransmissions);
    }
  }
  return figure;
}

absl::StatusOr<Figure> NsccSprayed() {
  Figure figure;
  figure.table = Header({"hosts", "protocol", "mean, us", "p99, us", "longest, us", "sent again"});
  for (auto [leaves, per_leaf, spines] : {std::tuple{8, 16, 16}, std::tuple{32, 32, 32}}) {
    Scenario scenario;
    scenario.fabric = absl::StrCat("leaf-spine:leaves=", leaves, ",hosts_per_leaf=", per_leaf,
                                   ",spines=", spines, ",delay=1us");
    scenario.workload = "permutation:bytes=2MB";
    scenario.packet.ecn = {
        .enabled = true, .probability_max = 1, .min_round_trips = 0.2, .max_round_trips = 0.8};
    scenario.packet.trimming = true;
    int hosts = leaves * per_leaf;
    auto row = [&](const char* name, const Outcome& outcome) {
      absl::StrAppendFormat(&figure.table, "| %d | %s | %.2f | %.2f | %.2f | %d |\n", hosts, name,
                            outcome.fct_mean_us, outcome.fct_p99_us, outcome.fct_max_us,
                            outcome.retransmissions);
    };
    SimulatedOptions protocol;
    protocol.controller.kind = net::ControllerKind::kNscc;
    for (PolicyKind policy : {PolicyKind::kReps, PolicyKind::kRandom}) {
      protocol.policy = policy;
      protocol.paths = 256;
      WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, protocol));
      row(policy == PolicyKind::kReps ? "multipath, nscc, reps" : "multipath, nscc, random",
          outcome);
    }
    scenario.own_transport = true;
    scenario.packet.transport = topology::TransportKind::kSelective;
    scenario.packet.make_congestion =
        net::multipath::SimulatedControllers(protocol.controller, protocol.hops);
    scenario.packet.load_balance = topology::LoadBalance::kSpray;
    WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, protocol));
    row("the simulator's `uec`", outcome);
  }
  return figure;
}

}  // namespace weft::cc
