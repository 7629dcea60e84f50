#include "tools/init/control_plane.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "collectives/rendezvous/fast_init.h"
#include "tools/init/measure.h"
#include "tools/init/model.h"
#include "tools/init/ops.h"
#include "tools/init/simulated_rank.h"
#include "topology/fabric/load.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/workload.h"

namespace weft::init {
namespace {

using topology::Endpoint;
using topology::Operation;
using topology::OperationId;
using topology::OperationKind;
using topology::Workload;

// On the wire, without the packet's header, which the simulator adds (docs/wire-format.md).
constexpr Bytes kSyn{64};
constexpr Bytes kChallenge{64};
constexpr Bytes kHello{256};
constexpr Bytes kVerdict{192};
constexpr Bytes kArrival{160};  // of a host's ranks at a barrier
constexpr Bytes kRelease{64};

constexpr OperationId kNone = ~OperationId{0};

struct Tree {
  int hosts = 0;
  int fan_out = 0;
  // The relay above a host's, as the host that it runs on; -1: the root, which is on host 0.
  int Above(int host) const { return fan_out == 0 ? -1 : host / fan_out; }
  int middles() const { return fan_out == 0 ? 0 : (hosts + fan_out - 1) / fan_out; }
  int HostOfMiddle(int middle) const { return middle * fan_out; }
};

// Builds the workload, phase by phase; phases of a host follow its own earlier ones alone.
class Builder {
 public:
  Builder(const Options& options, const ControlCosts& costs, const topology::Fabric& fabric)
      : options_(options),
        costs_(costs),
        tree_{options.hosts, options.fan_out},
        exchange_(ExchangeOf(options)) {
    for (int host = 0; host < options.hosts; ++host) {
      ends_.push_back({fabric.hosts()[static_cast<size_t>(host)], 0});
    }
    int64_t bytes = 0;
    for (int rank = 0; rank < options.ranks_per_host(); ++rank) {
      bytes += static_cast<int64_t>(collectives::EncodeMember(RecordOf(options, rank, 0)).size() +
                                    sizeof(uint32_t));
    }
    host_bytes_ = Bytes(bytes);
  }

  void Build() {
    Connect();
    auto release = [](int, int) { return kRelease; };
    auto records = [this](int first, int end) {
      int ranks = options_.ranks_per_host();
      return Bytes(ExchangeBytes(options_, exchange_, first * ranks, end * ranks));
    };
    std::vector<OperationId> registered = Meet(connected_, kArrival, Phase::kRegister, release);
    std::vector<OperationId> exchanged =
        Meet(registered, kArrival + host_bytes_, Phase::kExchange, records);
    Links(exchanged);
  }

  const Workload& workload() const { return workload_; }
  const std::vector<OperationId>& of(Phase phase) const {
    return phases_[static_cast<size_t>(phase)];
  }
  int64_t messages() const { return messages_; }
  int64_t root_messages() const { return root_messages_; }
  Bytes exchange_bytes() const { return released_ / tree_.hosts; }  // a host's, on average
  double root_cpu() const { return root_cpu_; }

 private:
  // A server: the host that it is on, and the last thing that it has to do so far.
  struct Server {
    int host = 0;
    OperationId last = kNone;
    bool root = false;
  };

  OperationId Send(int source, int target, Bytes bytes, OperationId after, bool root) {
    ++messages_;
    if (root) ++root_messages_;
    if (source == target) return after;  // a Unix socket
    Operation transfer;
    transfer.kind = OperationKind::kTransfer;
    transfer.source = ends_[static_cast<size_t>(source)];
    transfer.target = ends_[static_cast<size_t>(target)];
    transfer.bytes = bytes;
    return Add(transfer, after);
  }

  // One thing after the other.
  OperationId Serve(Server& server, double seconds, OperationId after) {
    if (server.root) root_cpu_ += seconds;
    Operation work = Work(server.host, seconds);
    std::vector<OperationId> waits;
    if (after != kNone) waits.push_back(after);
    if (server.last != kNone) waits.push_back(server.last);
    server.last = workload_.Add(work, waits);
    return server.last;
  }

  Operation Work(int host, double seconds) const {
    Operation work;
    work.kind = OperationKind::kCompute;
    work.source = ends_[static_cast<size_t>(host)];
    work.duration = absl::Seconds(seconds);
    return work;
  }

  OperationId Add(const Operation& operation, OperationId after) {
    if (after == kNone) return workload_.Add(operation);
    return workload_.Add(operation, {&after, 1});
  }

  // TCP's handshake and ours, of the relay at `host` with `server`.
  OperationId Join(int host, Server& server, OperationId begin) {
    int to = server.host;
    bool root = server.root;
    OperationId syn = Send(host, to, kSyn, begin, root);
    OperationId challenge = Send(to, host, kChallenge, syn, root);
    OperationId hello = Send(host, to, kHello, challenge, root);
    OperationId proven = Serve(server, costs_.connection, hello);
    return Send(to, host, kVerdict, proven, root);
  }

  void Connect() {
    root_ = {0, kNone, true};
    for (int middle = 0; middle < tree_.middles(); ++middle) {
      middles_.push_back({tree_.HostOfMiddle(middle), kNone, false});
      Join(middles_.back().host, root_, kNone);
    }
    for (int host = 0; host < tree_.hosts; ++host) {
      // A third of what a host's own does before the exchange is over.
      OperationId up = workload_.Add(Work(host, costs_.host / 3));
      connected_.push_back(Join(host, ServerOf(host), up));
      of_phase(Phase::kConnect).push_back(connected_.back());
    }
  }

  // What goes to the hosts from one to before another together.
  using Answer = std::function<Bytes(int first, int end)>;

  // All give something, and get something once all have given.
  std::vector<OperationId> Meet(const std::vector<OperationId>& begin, Bytes up, Phase phase,
                                const Answer& down) {
    std::vector<std::vector<OperationId>> arrived(middles_.size());
    std::vector<OperationId> at_root;
    for (int host = 0; host < tree_.hosts; ++host) {
      OperationId own = Add(Work(host, costs_.host / 3), begin[static_cast<size_t>(host)]);
      Server& server = ServerOf(host);
      OperationId sent = Send(host, server.host, up, own, server.root);
      OperationId served = Serve(server, costs_.message / 2 + ByteCost(up), sent);
      if (server.root) {
        at_root.push_back(served);
      } else {
        arrived[static_cast<size_t>(tree_.Above(host))].push_back(served);
      }
    }
    for (size_t i = 0; i < middles_.size(); ++i) {
      OperationId all = workload_.Add(Gathered(), arrived[i]);
      Bytes bytes = up * static_cast<int64_t>(arrived[i].size());
      OperationId sent = Send(middles_[i].host, root_.host, bytes, all, true);
      at_root.push_back(Serve(root_, costs_.message / 2 + ByteCost(bytes), sent));
    }
    OperationId complete = workload_.Add(Gathered(), at_root);
    return Release(complete, phase, down);
  }

  std::vector<OperationId> Release(OperationId complete, Phase phase, const Answer& down) {
    std::vector<OperationId> at_middle;
    for (Server& middle : middles_) {
      Bytes bytes = down(middle.host, std::min(middle.host + tree_.fan_out, tree_.hosts));
      OperationId served = Serve(root_, costs_.message / 2 + ByteCost(bytes), complete);
      at_middle.push_back(Send(root_.host, middle.host, bytes, served, true));
    }
    released_ = Bytes();
    std::vector<OperationId> released;
    for (int host = 0; host < tree_.hosts; ++host) {
      Server& server = ServerOf(host);
      OperationId after =
          server.root ? complete : at_middle[static_cast<size_t>(tree_.Above(host))];
      Bytes bytes = down(host, host + 1);
      released_ += bytes;
      OperationId served = Serve(server, costs_.message / 2 + ByteCost(bytes), after);
      released.push_back(Send(server.host, host, bytes, served, server.root));
    }
    of_phase(phase) = released;
    return released;
  }

  // Connections between ranks of different hosts, round by round; a host's ranks go side by side,
  // and those with the same two hosts are one transfer in the simulation. One core of a host makes
  // them one after the other.
  void Links(const std::vector<OperationId>& exchanged) {
    std::vector<OperationId> own = exchanged;
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<OperationId>> ends(static_cast<size_t>(tree_.hosts));
      for (int host = 0; host < tree_.hosts; ++host) Dial(host, round, own, ends);
      for (size_t host = 0; host < ends.size(); ++host) {
        if (ends[host].empty()) continue;
        ends[host].push_back(own[host]);
        own[host] = workload_.Add(Gathered(), ends[host]);
      }
    }
    of_phase(Phase::kConnections) = std::move(own);
  }

  void Dial(int host, int round, const std::vector<OperationId>& own,
            std::vector<std::vector<OperationId>>& ends) {
    int per_host = options_.ranks_per_host();
    std::map<int, int> dials;  // by the peers' host
    int local = 0;
    for (int rank = host * per_host; rank < (host + 1) * per_host; ++rank) {
      for (const auto& plan :
           collectives::PlanConnections(options_.mesh.GroupsOf(topology::JobRank(rank)))) {
        if (plan.round != round || !plan.dials) continue;
        if (plan.peer / per_host == host) {
          ++local;
        } else {
          ++dials[plan.peer / per_host];
        }
      }
    }
    auto at = static_cast<size_t>(host);
    if (local > 0) ends[at].push_back(Add(Work(host, costs_.link * local), own[at]));
    for (const auto& [peer, count] : dials) {
      messages_ += 3 * (count - 1);
      OperationId work = Add(Work(host, costs_.link * count), own[at]);
      OperationId syn = Send(host, peer, kSyn * count, work, false);
      // Accepted once the peer's relay has the exchange, too: it listens before that.
      OperationId challenge = Send(peer, host, kChallenge * count, syn, false);
      OperationId hello = Send(host, peer, kHello * count, challenge, false);
      OperationId verdict = Send(peer, host, kVerdict * count, hello, false);
      ends[at].push_back(verdict);
      ends[static_cast<size_t>(peer)].push_back(hello);
    }
  }

  static Operation Gathered() {
    Operation join;
    join.kind = OperationKind::kJoin;
    return join;
  }
  double ByteCost(Bytes bytes) const { return costs_.byte * static_cast<double>(bytes.count()); }
  Server& ServerOf(int host) {
    int above = tree_.Above(host);
    return above < 0 ? root_ : middles_[static_cast<size_t>(above)];
  }
  std::vector<OperationId>& of_phase(Phase phase) { return phases_[static_cast<size_t>(phase)]; }

  const Options& options_;
  const ControlCosts& costs_;
  const Tree tree_;
  std::vector<Endpoint> ends_;
  const Expected exchange_;
  Bytes host_bytes_;
  Bytes released_;  // to all hosts, by the last Meet()
  Workload workload_;
  Server root_;
  std::vector<Server> middles_;
  std::vector<OperationId> connected_;
  std::array<std::vector<OperationId>, kPhases> phases_;
  int64_t messages_ = 0;
  int64_t root_messages_ = 0;
  double root_cpu_ = 0;
};

std::string UsualFabric(int hosts) {
  int per_leaf = std::min(hosts, 64);
  int leaves = (hosts + per_leaf - 1) / per_leaf;
  return absl::StrFormat("leaf-spine:leaves=%d,hosts_per_leaf=%d,spines=32,delay=1us", leaves,
                         per_leaf);
}

// "0.3ns": a Duration would round that.
std::optional<double> ParseSeconds(absl::string_view text) {
  for (auto [unit, factor] :
       {std::pair("ns", 1e-9), std::pair("us", 1e-6), std::pair("ms", 1e-3), std::pair("s", 1.0)}) {
    absl::string_view number = text;
    double value = 0;
    if (absl::ConsumeSuffix(&number, unit) && absl::SimpleAtod(number, &value) && value >= 0 &&
        std::isfinite(value)) {
      return value * factor;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ControlCosts> ParseCosts(const std::string& text) {
  ControlCosts costs;
  const std::map<absl::string_view, double*> names = {{"connection", &costs.connection},
                                                      {"message", &costs.message},
                                                      {"byte", &costs.byte},
                                                      {"host", &costs.host},
                                                      {"link", &costs.link}};
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    auto found = names.find(pair.first);
    std::optional<double> seconds = ParseSeconds(pair.second);
    if (found == names.end() || !seconds.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--costs ", text, ": '", part,
          "' is none; right is connection=20us,message=3us,byte=0.3ns,host=2ms,link=30us"));
    }
    *found->second = *seconds;
  }
  return costs;
}

std::string ToText(const ControlCosts& costs) {
  return absl::StrFormat("connection=%.3gus,message=%.3gus,byte=%.3gns,host=%.3gus,link=%.3gus",
                         costs.connection * 1e6, costs.message * 1e6, costs.byte * 1e9,
                         costs.host * 1e6, costs.link * 1e6);
}

absl::StatusOr<ControlCosts> MeasureCosts(const Options& options) {
  ControlCosts costs;
  Options ops;
  ops.timeout = options.timeout;
  ops.op_connections = {64};
  ops.op_depths = {1};
  WEFT_ASSIGN_OR_RETURN(OpsMeasurement measured, MeasureOps(ops, [](const std::string&) {}));
  for (const OpsResult& row : measured.rows) {
    if (row.op == "add") costs.message = row.server_cpu;
  }
  auto run = [&](const char* layout, int hosts, bool relay, int connect) {
    Options small;
    small.all_records = !relay;
    small.timeout = options.timeout;
    small.layout = layout;
    small.hosts = hosts;
    small.relay = relay;
    small.connect_ranks = connect;
    absl::Status status = Resolve(small);
    return status.ok() ? Measure(small, [](int64_t) {}) : absl::StatusOr<Measurement>(status);
  };
  // The server's CPU is b n + c n^2: connections and messages are so many a rank, the bytes of an
  // all-gather go with the square.
  std::vector<std::pair<double, double>> points;
  double bytes = 0;
  for (const char* layout : {"tp8,dp64", "tp8,dp128", "tp8,dp512"}) {
    WEFT_ASSIGN_OR_RETURN(Measurement m, run(layout, 0, false, 0));
    points.emplace_back(m.ranks, m.server_cpu_seconds);
    bytes = static_cast<double>(m.exchange_bytes) / m.ranks;
  }
  Model model = Fit(points);
  costs.connection = std::max(0.0, model.coefficients[1] - 2 * costs.message);
  costs.byte = model.coefficients[2] / bytes;
  WEFT_ASSIGN_OR_RETURN(Measurement host, run("tp8", 1, true, 0));
  costs.host = host.total_seconds;
  WEFT_ASSIGN_OR_RETURN(Measurement links, run("tp8,dp32", 0, true, 256));
  double seconds = links.phases[static_cast<size_t>(Phase::kConnections)].seconds;
  costs.link = links.connections > 0 ? seconds / static_cast<double>(links.connections) : 0;
  return costs;
}

absl::StatusOr<ControlPlane> SimulateControlPlane(const Options& options,
                                                  const ControlCosts& costs) {
  ControlPlane plane;
  plane.costs = costs;
  plane.fabric = options.fabric.empty() ? UsualFabric(options.hosts) : options.fabric;
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric, topology::LoadFabric(plane.fabric));
  if (static_cast<int>(fabric.hosts().size()) < options.hosts) {
    return absl::InvalidArgumentError(absl::StrCat("--fabric ", plane.fabric, " has ",
                                                   fabric.hosts().size(), " hosts, and --hosts is ",
                                                   options.hosts));
  }
  Builder builder(options, costs, fabric);
  builder.Build();
  topology::FlowOptions flow;
  flow.limit = absl::Hours(24);
  WEFT_ASSIGN_OR_RETURN(topology::SimulationResult result,
                        topology::SimulateFlows(fabric, builder.workload(), flow));
  if (result.unfinished > 0) {
    return absl::InternalError(
        absl::StrCat(result.unfinished, " operations of the simulation did not end"));
  }
  double before = 0;
  for (size_t p = 0; p < kPhases; ++p) {
    double end = before;
    for (OperationId id : builder.of(static_cast<Phase>(p))) {
      end = std::max(end, absl::ToDoubleSeconds(result.operations[id].ended));
    }
    plane.phases[p] = end - before;
    before = end;
  }
  plane.total_seconds = before;
  plane.messages = builder.messages();
  plane.root_messages = builder.root_messages();
  plane.exchange_bytes = builder.exchange_bytes().count();
  plane.root_cpu_seconds = builder.root_cpu();
  return plane;
}

}  // namespace weft::init
