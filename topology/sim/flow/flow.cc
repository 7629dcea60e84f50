#include "topology/sim/flow/flow.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/fabric/routes.h"
#include "topology/sim/dependents.h"
#include "topology/sim/flow/fluid.h"
#include "topology/sim/flow/paths.h"
#include "topology/sim/flow/spray.h"
#include "topology/sim/in_order.h"
#include "topology/sim/reachable.h"

namespace weft::topology {
namespace {

constexpr int kLaneBits = 16;  // of a transfer's tag; above: its operation
constexpr int64_t kProgressEvery = 1 << 14;

absl::Status CheckOptions(const Fabric& fabric, const FlowOptions& options) {
  if (options.payload <= Bytes(0) || options.header < Bytes(0) || options.ack < Bytes(0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packets of ", options.payload.count(), " bytes with headers of ", options.header.count(),
        " and acknowledgements of ", options.ack.count(), ": wanted are at least 1, 0 and 0"));
  }
  if (options.exact_paths < 0 || !(options.late >= 0 && options.late < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("exact_paths ", options.exact_paths, " and late ", options.late,
                     ": wanted are a number from 0, and a share from 0 to below 1"));
  }
  absl::Duration before;
  for (const LinkFault& fault : options.faults) {
    if (fault.link.value() < 0 || fault.link.value() >= fabric.links()) {
      return absl::InvalidArgumentError(
          absl::StrCat("fault of link ", fault.link.value(), " in a fabric of ", fabric.links()));
    }
    if (fault.at < before) {
      return absl::InvalidArgumentError(absl::StrCat("fault at ", absl::FormatDuration(fault.at),
                                                     " after one at ", absl::FormatDuration(before),
                                                     ": faults must be in order of time, from 0"));
    }
    before = fault.at;
    if (fault.kind == LinkFault::Kind::kBandwidth && fault.bandwidth.bytes_per_second() <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("fault of ", fabric.Name(fault.link), ": a bandwidth of 0; kDown is meant"));
    }
  }
  return absl::OkStatus();
}

// Bytes a second of a link that is up, less what acknowledgements take.
double CapacityOf(const FabricLink& link, const FlowOptions& options) {
  const double all = link.bandwidth.bytes_per_second();
  if (link.nic < 0 && options.load_balance == LoadBalance::kEcmp) return all;
  const double full = static_cast<double>((options.payload + options.header).count());
  return all * full / (full + static_cast<double>(options.ack.count()));
}

std::vector<double> Capacities(const Fabric& fabric, const FlowOptions& options) {
  std::vector<double> capacities;
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricLink& link = fabric.link(LinkId(i));
    capacities.push_back(link.up ? CapacityOf(link, options) : 0);
  }
  return capacities;
}

// One run. Operations go through begin (all that they waited for has ended, and it is time), for
// transfers drained (all bytes are gone), and end.
class Run {
 public:
  Run(const Fabric& fabric, const Workload& workload, const FlowOptions& options)
      : workload_(workload),
        options_(options),
        fabric_(fabric),
        routes_(fabric_),
        paths_(routes_, options.seed, options.load_balance, options.hash),
        cells_(fabric, Capacities(fabric, options), sprays() && options.merge_links),
        spray_(fabric_, paths_, cells_),
        fluid_(cells_.capacities(), options.incremental, static_cast<size_t>(options.exact_paths),
               options.late),
        limit_(ToTicks(options.limit)),
        full_packet_(static_cast<double>((options.payload + options.header).count())),
        dependents_(workload),
        in_order_(workload) {
    for (int i = 0; i < fabric.links(); ++i) down_.push_back(!fabric.link(LinkId(i)).up);
    result_.operations.resize(workload.size());
    state_.resize(workload.size());
    core_free_.resize(workload.cores());
    for (OperationId id = 0; id < workload.size(); ++id) {
      state_[id].waits_for = static_cast<uint32_t>(workload.After(id).size());
    }
  }

  absl::StatusOr<SimulationResult> Simulate();

 private:
  struct State {
    uint32_t waits_for = 0;  // operations
    uint32_t lanes = 0;      // that have not drained
    Ticks end = 0;           // of those that have
  };
  struct Event {
    Ticks at;
    OperationId operation;
    bool ends;  // else: begins
    bool operator>(const Event& other) const {
      if (at != other.at) return at > other.at;
      if (operation != other.operation) return operation > other.operation;
      return ends < other.ends;
    }
  };

  bool sprays() const { return options_.load_balance != LoadBalance::kEcmp; }
  void Push(const Event& event) {
    events_.push_back(event);
    std::push_heap(events_.begin(), events_.end(), std::greater<>());
  }
  Ticks NextFault() const {
    return next_fault_ < options_.faults.size() ? ToTicks(options_.faults[next_fault_].at) : kNever;
  }
  void Step();
  void Begin(OperationId id);
  void End(OperationId id);
  void StartLane(OperationId id, uint32_t lane, std::optional<double> left);
  static bool InOrder(const Operation& operation) {
    return operation.in_order && operation.kind == OperationKind::kTransfer;
  }
  void StartInOrder(OperationId id, uint32_t lane);
  void StartNextInOrder(OperationId id, uint32_t lane);
  void Drained(const Fluid::Transfer& transfer);
  void Apply(const LinkFault& fault);
  void Reroute();
  // On the wire, of a message.
  double Wire(Bytes bytes) const;
  int64_t Packets(Bytes bytes) const;
  double AcksOfSmallPackets(Bytes bytes) const;
  void Report();

  const Workload& workload_;
  const FlowOptions& options_;
  Fabric fabric_;  // as its switches know it
  Routes routes_;
  FlowPaths paths_;
  LinkCells cells_;
  SprayPaths spray_;
  Fluid fluid_;
  const Ticks limit_;
  const double full_packet_;

  std::vector<State> state_;
  std::vector<Ticks> core_free_;  // by core - 1: when its computations so far have ended
  const Dependents dependents_;
  std::vector<Event> events_;
  struct Stranded {  // a lane without a path
    OperationId operation;
    uint32_t lane;
    std::optional<double> left;
  };
  std::vector<Stranded> stranded_;
  InOrderQueues in_order_;
  std::vector<bool> down_;  // [link]
  size_t next_fault_ = 0;
  Ticks now_ = 0;
  size_t done_ = 0;
  FlowPath path_;
  std::vector<Fluid::Transfer> drained_;
  FlowStatistics statistics_;
  SimulationResult result_;
};

double Run::Wire(Bytes bytes) const {
  return static_cast<double>(bytes.count() + Packets(bytes) * options_.header.count());
}

int64_t Run::Packets(Bytes bytes) const {
  const int64_t payload = options_.payload.count();
  return std::max<int64_t>(1, (bytes.count() + payload - 1) / payload);
}

// What acknowledgements take more than CapacityOf leaves them, as packets are not full.
double Run::AcksOfSmallPackets(Bytes bytes) const {
  const double ack = static_cast<double>(options_.ack.count());
  return ack * (static_cast<double>(Packets(bytes)) - Wire(bytes) / full_packet_);
}

absl::StatusOr<SimulationResult> Run::Simulate() {
  for (OperationId id = 0; id < workload_.size(); ++id) {
    if (state_[id].waits_for == 0) Push({ToTicks(workload_.operation(id).start), id, false});
  }
  int64_t steps = 0;
  while (done_ < workload_.size()) {
    const Ticks event = events_.empty() ? kNever : events_.front().at;
    const Ticks next = std::min({event, fluid_.next(), NextFault()});
    if (next == kNever || next > limit_) {
      now_ = std::max(now_, std::min(next, limit_));
      break;
    }
    now_ = next;
    Step();
    if (options_.progress && ++steps % kProgressEvery == 0 &&
        !options_.progress(FromTicks(now_), done_)) {
      return absl::CancelledError(absl::StrCat("stopped at ", absl::FormatDuration(FromTicks(now_)),
                                               ", ", done_, " of ", workload_.size(),
                                               " operations done"));
    }
  }
  Report();
  return std::move(result_);
}

// All that happens at one time; then the rates.
void Run::Step() {
  while (NextFault() <= now_) Apply(options_.faults[next_fault_++]);
  if (fluid_.next() <= now_) {
    fluid_.Finish(now_, drained_);
    for (const Fluid::Transfer& transfer : drained_) Drained(transfer);
  }
  while (!events_.empty() && events_.front().at <= now_) {
    const Event event = events_.front();
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    events_.pop_back();
    ++result_.events;
    if (event.ends) {
      End(event.operation);
    } else {
      Begin(event.operation);
    }
  }
  fluid_.Solve(now_);
}

void Run::Begin(OperationId id) {
  const Operation& operation = workload_.operation(id);
  result_.operations[id].started = FromTicks(now_);
  switch (operation.kind) {
    case OperationKind::kJoin:
      End(id);
      return;
    case OperationKind::kCompute:
      if (operation.core > 0) {
        Ticks& free = core_free_[operation.core - 1];
        free = Later(std::max(free, now_), ToTicks(operation.duration));
        Push({free, id, true});
        return;
      }
      Push({Later(now_, ToTicks(operation.duration)), id, true});
      return;
    case OperationKind::kTransfer:
    case OperationKind::kRing:
      state_[id].lanes = operation.width;
      for (uint32_t lane = 0; lane < operation.width; ++lane) {
        if (InOrder(operation)) {
          StartInOrder(id, lane);
        } else {
          StartLane(id, lane, std::nullopt);
        }
      }
      return;
  }
}

// Only pushes what may begin: no recursion.
void Run::End(OperationId id) {
  result_.operations[id].ended = FromTicks(now_);
  ++done_;
  for (OperationId later : dependents_.Of(id)) {
    if (--state_[later].waits_for > 0) continue;
    Push({std::max(now_, ToTicks(workload_.operation(later).start)), later, false});
  }
}

void Run::StartInOrder(OperationId id, uint32_t lane) {
  if (in_order_.Enter({id, lane})) StartLane(id, lane, std::nullopt);
}

void Run::StartNextInOrder(OperationId id, uint32_t lane) {
  const std::optional<InOrderQueues::Lane> next = in_order_.Leave({id, lane});
  if (next.has_value()) StartLane(next->operation, next->number, std::nullopt);
}

// `left`: bytes, of one that was under way and is to go on by another path.
void Run::StartLane(OperationId id, uint32_t lane, std::optional<double> left) {
  const Operation& operation = workload_.operation(id);
  const double wire = Wire(operation.bytes);
  const double packet = std::min(wire, full_packet_);
  double bytes = wire + AcksOfSmallPackets(operation.bytes);
  double latency = 0;
  const int nic = static_cast<int>(lane);
  if (operation.kind == OperationKind::kRing) {
    paths_.FindRing(workload_.ring(operation.ring), nic, operation.source_port, operation.steps,
                    packet, path_);
    cells_.Rewrite(path_.uses, fluid_);
    bytes *= operation.steps;
    latency = path_.propagation;
  } else {
    const Endpoint source{operation.source.host, operation.source.nic + nic};
    const Endpoint target{operation.target.host, operation.target.nic + nic};
    if (sprays()) {
      spray_.Find(source, target, fluid_, path_);
    } else {
      paths_.Find(source, target, operation.source_port, path_);
    }
    latency = path_.Latency(packet);
  }
  const Fluid::Transfer transfer{left.value_or(bytes),
                                 static_cast<uint64_t>(id) << kLaneBits | lane, ToTicks(latency)};
  if (!path_.reachable) {
    stranded_.push_back({id, lane, left});
    return;
  }
  ++statistics_.flows;
  if (path_.uses.empty()) {
    Drained(transfer);
  } else {
    fluid_.Start(now_, path_.uses, transfer);
  }
}

void Run::Drained(const Fluid::Transfer& transfer) {
  const OperationId id = static_cast<OperationId>(transfer.tag >> kLaneBits);
  State& state = state_[id];
  state.end = std::max(state.end, Later(now_, transfer.latency));
  ++result_.events;
  if (--state.lanes == 0) Push({state.end, id, true});
  if (!InOrder(workload_.operation(id))) return;
  StartNextInOrder(id, static_cast<uint32_t>(transfer.tag & ((1U << kLaneBits) - 1)));
}

void Run::Apply(const LinkFault& fault) {
  ++result_.events;
  if (fault.kind == LinkFault::Kind::kBandwidth) {
    fabric_.SetBandwidth(fault.link, fault.bandwidth);
  } else {
    down_[fault.link.index()] = fault.kind == LinkFault::Kind::kDown;
    down_[fabric_.link(fault.link).reverse.index()] = fault.kind == LinkFault::Kind::kDown;
  }
  for (LinkId id : {fault.link, fabric_.link(fault.link).reverse}) {
    const double capacity = down_[id.index()] ? 0 : CapacityOf(fabric_.link(id), options_);
    fluid_.SetCapacity(cells_.Isolate(id, fluid_), capacity);
  }
  spray_.Forget();
  if (!fault.reroute || fault.kind == LinkFault::Kind::kBandwidth) return;
  fabric_.SetUp(fault.link, fault.kind == LinkFault::Kind::kUp);
  Reroute();
}

// Whatever is under way goes on by the path that new traffic takes.
void Run::Reroute() {
  routes_.Update();
  fluid_.Withdraw(now_, drained_);
  const std::vector<Fluid::Transfer> moved = drained_;
  const auto stranded = std::exchange(stranded_, {});
  for (const Fluid::Transfer& transfer : moved) {
    StartLane(static_cast<OperationId>(transfer.tag >> kLaneBits),
              static_cast<uint32_t>(transfer.tag & ((1U << kLaneBits) - 1)), transfer.bytes);
  }
  for (const Stranded& lane : stranded) StartLane(lane.operation, lane.lane, lane.left);
}

void Run::Report() {
  fluid_.Withdraw(now_, drained_);
  for (const OperationResult& operation : result_.operations) {
    if (operation.ended == absl::InfiniteDuration()) {
      ++result_.unfinished;
    } else {
      result_.end = std::max(result_.end, operation.ended);
    }
  }
  result_.links.resize(static_cast<size_t>(fabric_.links()));
  const std::vector<double>& carried = fluid_.carried();
  for (size_t i = 0; i < result_.links.size(); ++i) {
    const MaxMin::Resource cell = cells_.cell(LinkId(static_cast<int>(i)));
    if (cell < carried.size()) result_.links[i].bytes = Bytes(std::llround(carried[cell]));
  }
  statistics_.solves = fluid_.solver().solves();
  statistics_.rates = fluid_.solver().filled();
  if (options_.statistics != nullptr) *options_.statistics = statistics_;
}

}  // namespace

absl::StatusOr<SimulationResult> SimulateFlows(const Fabric& fabric, const Workload& workload,
                                               const FlowOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(fabric, options));
  WEFT_RETURN_IF_ERROR(Validate(workload, fabric));
  WEFT_RETURN_IF_ERROR(Routes::Feasible(fabric));
  WEFT_RETURN_IF_ERROR(CheckReachable(workload, Routes(fabric), options.faults));
  if (workload.rings() == 0 || workload.transfers() > options.exact_rings) {
    return Run(fabric, workload, options).Simulate();
  }
  WEFT_ASSIGN_OR_RETURN(const Expansion expansion, Expand(workload));
  WEFT_ASSIGN_OR_RETURN(SimulationResult result,
                        Run(fabric, expansion.workload, options).Simulate());
  return Contract(expansion, std::move(result));
}

}  // namespace weft::topology
