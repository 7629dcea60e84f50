// The entry of the packet level: starts operations when what they wait for has ended, and collects
// what became of them.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/sim/dependents.h"
#include "topology/sim/in_order.h"
#include "topology/sim/packet/network.h"
#include "topology/sim/packet/transports/reliable.h"
#include "topology/sim/path_choice.h"
#include "topology/sim/reachable.h"

namespace weft::topology {
namespace packet {
namespace {

class PacketSimulation final : public NetworkOwner, public Progress {
 public:
  PacketSimulation(const Fabric& fabric, const Workload& workload, const PacketOptions& options)
      : fabric_(fabric),  // its own: faults change it
        workload_(workload),
        options_(options),
        routes_(fabric_),
        network_(fabric_, options_, *this),
        dependents_(workload_),
        in_order_(workload_) {}

  absl::Status Prepare();
  SimulationResult Run();

  void OnTimer(const Timer& timer) override;
  void OnSent(Picoseconds now) override;
  void OnProgress(Picoseconds now) override;
  bool OnHeartbeat(Picoseconds now) override;
  void Sent(FlowId flow) override;
  void Delivered(FlowId flow, Picoseconds now) override;
  void Acknowledged(FlowId flow, Picoseconds now) override;
  void Retransmitted(FlowId /*flow*/) override { ++retransmissions_; }

 private:
  struct State {
    Picoseconds started = kNever, ended = kNever, acknowledged = kNever;
    uint32_t waits_for = 0;
  };
  absl::Status PrepareTransfer(OperationId id);
  Picoseconds OneWay(NicId source, NicId target, uint64_t path, uint32_t size) const;
  void Ready(OperationId id, Picoseconds now);
  void Start(OperationId id, Picoseconds now);
  void Finish(OperationId id, Picoseconds now);
  void ApplyFault(const LinkFault& fault);
  SimulationResult Collect();

  Fabric fabric_;  // as its switches know it
  const Workload& workload_;
  const PacketOptions& options_;
  Routes routes_;
  Network network_;
  Arena arena_;
  TransportContext context_;
  std::unique_ptr<Transports> transports_;
  LargeVector<Transfer> transfers_;     // [operation]
  std::vector<State> states_;           // [operation]
  std::vector<Picoseconds> core_free_;  // [core - 1] when its computations so far have ended
  const Dependents dependents_;
  std::vector<OperationId> finished_;  // and what depends on them is not yet started
  InOrderQueues in_order_;
  std::vector<FlowId> sent_;  // the last packets of these, in order, have just gone
  size_t ended_ = 0, unacknowledged_ = 0;
  int64_t retransmissions_ = 0;
};

// By hand along one of the paths: what a frame takes in an empty fabric. kNever: there is no way.
Picoseconds PacketSimulation::OneWay(NicId source, NicId target, uint64_t path,
                                     uint32_t size) const {
  const Forwarding& forwarding = network_.forwarding();
  const Nic& nic = network_.nic(source);
  uint32_t at = nic.first_link;
  for (uint32_t i = 0; i < nic.links; ++i) {
    const Link& port = network_.link_by_number(nic.first_link + i);
    if ((port.flags & kUp) && forwarding.Next(port.target, target).count > 0) {
      at = nic.first_link + i;
      break;
    }
  }
  Picoseconds time = 0;
  for (int hops = 0; hops < 64; ++hops) {
    const Link& link = network_.link_by_number(at);
    time += link.rate.TimeFor(size) + link.delay;
    if (link.flags & kToHost) return time;
    Forwarding::Set set = forwarding.Next(link.target, target);
    if (set.count == 0) return kNever;
    NodeId node = fabric_.switches()[link.target];
    at = forwarding.Member(set, static_cast<uint32_t>(ChooseLink(path, node, set.count)));
  }
  return kNever;
}

absl::Status PacketSimulation::PrepareTransfer(OperationId id) {
  const Operation& operation = workload_.operation(id);
  Transfer& transfer = transfers_[id];
  transfer.source = static_cast<NicId>(fabric_.IndexOf(operation.source));
  transfer.target = static_cast<NicId>(fabric_.IndexOf(operation.target));
  transfer.bytes = operation.bytes.count();
  if (operation.source.host == operation.target.host) return absl::OkStatus();
  int64_t payload = options_.payload.count(), header = options_.header.count();
  int64_t packets = std::max<int64_t>(1, (transfer.bytes + payload - 1) / payload);
  if (packets >= int64_t{1} << 31) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", id, " has ", packets,
                                                   " packets; at most 2^31 - 1 can be simulated"));
  }
  transfer.packets = static_cast<uint32_t>(packets);
  transfer.last_size = static_cast<uint16_t>(
      std::max<int64_t>(kMinimumFrame, transfer.bytes - (packets - 1) * payload + header));
  transfer.source_port = operation.source_port;
  transfer.path =
      FlowHash(options_.seed, operation.source, operation.target, operation.source_port);
  transfer.path_back =
      FlowHash(options_.seed, operation.target, operation.source, operation.source_port);
  Picoseconds there = OneWay(transfer.source, transfer.target, transfer.path, context_.full_size);
  Picoseconds back =
      OneWay(transfer.target, transfer.source, transfer.path_back, context_.ack_size);
  if (there != kNever && back != kNever) {
    transfer.round_trip = there + back;
    return absl::OkStatus();
  }
  transfer.round_trip = 10 * kMicrosecond;
  return absl::OkStatus();
}

absl::Status PacketSimulation::Prepare() {
  WEFT_RETURN_IF_ERROR(CheckReachable(workload_, routes_, options_.faults));
  network_.SetRoutes(routes_);
  context_.options = &options_;
  context_.progress = this;
  context_.arena = &arena_;
  context_.full_size = static_cast<uint16_t>((options_.payload + options_.header).count());
  context_.ack_size = static_cast<uint16_t>(options_.ack_size.count());
  context_.timeout = FromDuration(options_.timeout);
  if (context_.timeout == 0) {
    context_.timeout =
        options_.transport == TransportKind::kGoBackN ? kMillisecond : 200 * kMicrosecond;
  }
  context_.nack_interval = FromDuration(options_.nack_interval);
  for (NicId nic = 0; nic < static_cast<NicId>(fabric_.endpoints()); ++nic) {
    const Nic& ports = network_.nic(nic);
    auto rate_of = [&](uint32_t port) {
      return network_.link_by_number(ports.first_link + port).rate.bytes_per_picosecond();
    };
    double rate = rate_of(0);
    for (uint32_t port = 1; port < ports.links; ++port) rate += rate_of(port);
    context_.nic_rate.push_back(rate);
    context_.port_rate.push_back(rate_of(0));
  }
  transfers_.resize(workload_.size());
  states_.resize(workload_.size());
  core_free_.resize(workload_.cores());
  context_.transfers = transfers_.data();
  for (OperationId id = 0; id < workload_.size(); ++id) {
    if (workload_.operation(id).kind != OperationKind::kTransfer) continue;
    WEFT_RETURN_IF_ERROR(PrepareTransfer(id));
  }
  Picoseconds longest = 0;
  for (const Transfer& transfer : transfers_) longest = std::max(longest, transfer.round_trip);
  network_.SetLongestRoundTrip(longest);
  // A default below the round trip would send everything twice.
  if (options_.timeout <= absl::ZeroDuration()) {
    context_.timeout = std::max(context_.timeout, 3 * longest);
  }
  transports_ = MakeTransports(context_, workload_.size());
  for (NicId nic = 0; nic < static_cast<NicId>(fabric_.endpoints()); ++nic) {
    network_.SetProtocol(nic, transports_->Make(nic));
  }
  for (OperationId id = 0; id < workload_.size(); ++id) {
    states_[id].waits_for = static_cast<uint32_t>(workload_.After(id).size());
  }
  return absl::OkStatus();
}

SimulationResult PacketSimulation::Run() {
  for (uint32_t i = 0; i < options_.faults.size(); ++i) {
    Picoseconds at = FromDuration(options_.faults[i].at);
    if (at <= 0) {  // before anything is sent
      ApplyFault(options_.faults[i]);
    } else {
      network_.timers().Push({at, TimerKind::kFault, i, 0});
    }
  }
  for (OperationId id = 0; id < workload_.size(); ++id) {
    if (states_[id].waits_for == 0) Ready(id, 0);
  }
  OnProgress(0);
  if (ended_ < workload_.size() || unacknowledged_ > 0) {
    network_.Run(FromDuration(options_.limit));
  }
  return Collect();
}

// All that it waited for has ended.
void PacketSimulation::Ready(OperationId id, Picoseconds now) {
  Picoseconds start = FromDuration(workload_.operation(id).start);
  if (start > now) {
    network_.timers().Push({start, TimerKind::kOperation, id, 0});
  } else {
    Start(id, now);
  }
}

void PacketSimulation::Start(OperationId id, Picoseconds now) {
  const Operation& operation = workload_.operation(id);
  states_[id].started = now;
  switch (operation.kind) {
    case OperationKind::kCompute:
      if (operation.core > 0) {
        Picoseconds& free = core_free_[operation.core - 1];
        free = std::max(free, now) + FromDuration(operation.duration);
        network_.timers().Push({free, TimerKind::kOperation, id, 0});
        return;
      }
      network_.timers().Push(
          {now + FromDuration(operation.duration), TimerKind::kOperation, id, 0});
      return;
    case OperationKind::kTransfer:
      if (operation.source.host == operation.target.host) break;  // no network between
      ++unacknowledged_;
      if (operation.in_order) {
        network_.Settle(transfers_[id].source);
        if (!in_order_.Enter({id})) return;
      }
      network_.Begin(transfers_[id].source, id);
      return;
    default:
      break;
  }
  Finish(id, now);
}

void PacketSimulation::Finish(OperationId id, Picoseconds now) {
  State& state = states_[id];
  state.ended = now;
  if (state.acknowledged == kNever && transfers_[id].packets == 0) state.acknowledged = now;
  ++ended_;
  finished_.push_back(id);
  network_.NoteProgress();
}

void PacketSimulation::Sent(FlowId flow) {
  if (!workload_.operation(flow).in_order) return;
  sent_.push_back(flow);
  network_.NoteSent();
}

void PacketSimulation::Delivered(FlowId flow, Picoseconds now) { Finish(flow, now); }

void PacketSimulation::Acknowledged(FlowId flow, Picoseconds now) {
  states_[flow].acknowledged = now;
  --unacknowledged_;
  network_.NoteProgress();
}

// The next on the connection follows without a gap. Of several ports one may have been free since
// before that one was ready.
void PacketSimulation::OnSent(Picoseconds now) {
  for (FlowId flow : sent_) {
    const std::optional<InOrderQueues::Lane> lane = in_order_.Leave({flow});
    if (!lane.has_value()) continue;
    const OperationId next = lane->operation;
    network_.Follow(transfers_[next].source, next, std::max(now, states_[next].started));
  }
  sent_.clear();
}

void PacketSimulation::OnProgress(Picoseconds now) {
  // Starting one may finish it at once.
  for (size_t i = 0; i < finished_.size(); ++i) {
    for (OperationId later : dependents_.Of(finished_[i])) {
      if (--states_[later].waits_for == 0) Ready(later, now);
    }
  }
  finished_.clear();
  if (ended_ == workload_.size() && unacknowledged_ == 0) network_.Stop();
}

bool PacketSimulation::OnHeartbeat(Picoseconds now) {
  return !options_.progress || options_.progress(ToDuration(now), ended_);
}

void PacketSimulation::OnTimer(const Timer& timer) {
  switch (timer.kind) {
    case TimerKind::kFault:
      ApplyFault(options_.faults[timer.id]);
      break;
    case TimerKind::kLate:
      network_.OnLate(timer.argument, timer.id);
      break;
    case TimerKind::kPause:
      network_.OnPauseHeeded(timer.id, timer.argument);
      break;
    case TimerKind::kNic:
      network_.OnNicDeadline(timer.id);
      break;
    case TimerKind::kOperation:
      if (states_[timer.id].started == kNever) {
        Start(timer.id, timer.time);
      } else {
        Finish(timer.id, timer.time);
      }
      break;
    case TimerKind::kWatchdog:
      network_.OnWatchdog();
      break;
  }
}

void PacketSimulation::ApplyFault(const LinkFault& fault) {
  if (options_.observer != nullptr) options_.observer->Fault(fault);
  if (fault.kind == LinkFault::Kind::kBandwidth) {
    fabric_.SetBandwidth(fault.link, fault.bandwidth);
    network_.SetLinkBandwidth(fault.link, fault.bandwidth);
    return;
  }
  bool up = fault.kind == LinkFault::Kind::kUp;
  network_.SetLinkUp(fault.link, up);
  if (!fault.reroute) return;
  fabric_.SetUp(fault.link, up);
  routes_.Update();
  network_.SetRoutes(routes_);
}

SimulationResult PacketSimulation::Collect() {
  network_.Finish();
  SimulationResult result;
  Picoseconds end = 0;
  result.operations.reserve(states_.size());
  for (const State& state : states_) {
    OperationResult& one = result.operations.emplace_back();
    one.started = ToDuration(state.started);
    one.ended = ToDuration(state.ended);
    one.acknowledged = ToDuration(state.acknowledged);
    if (state.ended == kNever) {
      ++result.unfinished;
    } else {
      end = std::max(end, state.ended);
      one.picoseconds = state.ended - state.started;
    }
  }
  result.end = ToDuration(end);
  for (int i = 0; i < fabric_.links(); ++i) {
    const Link& link = network_.link(LinkId(i));
    LinkResult& one = result.links.emplace_back();
    one.bytes = Bytes(link.bytes);
    one.packets = link.frames;
    one.queue_max = Bytes(link.queue_max);
    if (end > 0) one.queue_mean = link.queue_integral / static_cast<double>(end);
    one.marked = link.marked;
    one.dropped = link.dropped;
    one.paused = ToDuration(link.paused_total);
  }
  result.link_traversals = network_.traversals();
  result.events = network_.events();
  result.retransmissions = retransmissions_;
  result.deadlock = network_.deadlock();
  return result;
}

absl::Status CheckRange(bool is_right, absl::string_view name, absl::string_view value,
                        absl::string_view range) {
  if (is_right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", range));
}

absl::Status CheckOptions(const Fabric& fabric, const PacketOptions& options) {
  constexpr Bytes kFullMost{65535};
  WEFT_RETURN_IF_ERROR(CheckRange(options.payload > Bytes(0) && options.payload <= kFullMost,
                                  "the payload", ToString(options.payload), "1 to 65535 bytes"));
  WEFT_RETURN_IF_ERROR(
      CheckRange(options.header >= Bytes(0) && options.header <= kFullMost - options.payload,
                 "the header", ToString(options.header),
                 absl::StrCat("0 to ", (kFullMost - options.payload).count(),
                              " bytes, as a packet has at most 65535")));
  WEFT_RETURN_IF_ERROR(
      CheckRange(options.ack_size >= Bytes(kMinimumFrame) && options.ack_size <= Bytes(65535),
                 "the size of acknowledgements", ToString(options.ack_size), "64 to 65535 bytes"));
  WEFT_RETURN_IF_ERROR(CheckRange(options.ack_every > 0, "packets an acknowledgement",
                                  absl::StrCat(options.ack_every), "at least 1"));
  WEFT_RETURN_IF_ERROR(CheckRange(!options.ecn.enabled || options.ecn.min <= options.ecn.max,
                                  "ECN's lower threshold", ToString(options.ecn.min),
                                  absl::StrCat("at most the upper, ", ToString(options.ecn.max))));
  WEFT_RETURN_IF_ERROR(
      CheckRange(options.ecn.probability_max >= 0 && options.ecn.probability_max <= 1,
                 "the share that ECN marks just below its upper threshold",
                 absl::StrCat(options.ecn.probability_max), "0 to 1"));
  WEFT_RETURN_IF_ERROR(CheckRange(options.pfc.dynamic_shift >= 0 && options.pfc.dynamic_shift < 63,
                                  "the shift of PFC's share of the free memory",
                                  absl::StrCat(options.pfc.dynamic_shift), "0 to 62"));
  WEFT_RETURN_IF_ERROR(CheckRange(options.reordering >= 0, "packets that may overtake one",
                                  absl::StrCat(options.reordering), "at least 0"));
  double slowest = 1e6 / 8;
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricLink& link = fabric.link(LinkId(i));
    WEFT_RETURN_IF_ERROR(CheckRange(link.bandwidth.bytes_per_second() >= slowest,
                                    absl::StrCat("the bandwidth of ", fabric.Name(LinkId(i))),
                                    ToString(link.bandwidth), "at least 1 Mbps"));
  }
  for (const LinkFault& fault : options.faults) {
    WEFT_RETURN_IF_ERROR(CheckRange(fault.link.value() >= 0 && fault.link.value() < fabric.links(),
                                    "the link of a fault", absl::StrCat(fault.link.value()),
                                    absl::StrCat("below ", fabric.links())));
    WEFT_RETURN_IF_ERROR(CheckRange(
        fault.kind != LinkFault::Kind::kBandwidth || fault.bandwidth.bytes_per_second() >= slowest,
        "the bandwidth of a fault", ToString(fault.bandwidth), "at least 1 Mbps"));
  }
  bool needs_buffer = options.pfc.enabled && options.pfc.xoff <= Bytes(0);
  if (!needs_buffer || options.switch_buffer > Bytes(0)) return absl::OkStatus();
  for (NodeId node : fabric.switches()) {
    WEFT_RETURN_IF_ERROR(CheckRange(
        fabric.node(node).buffer > Bytes(0), absl::StrCat("the memory of ", fabric.node(node).name),
        "not stated", "given, as PFC's dynamic threshold is a share of it"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace packet

absl::StatusOr<SimulationResult> SimulatePackets(const Fabric& fabric, const Workload& workload,
                                                 const PacketOptions& options) {
  WEFT_RETURN_IF_ERROR(packet::CheckOptions(fabric, options));
  WEFT_RETURN_IF_ERROR(Validate(workload, fabric));
  WEFT_RETURN_IF_ERROR(Routes::Feasible(fabric));
  if (workload.simple()) {
    packet::PacketSimulation simulation(fabric, workload, options);
    WEFT_RETURN_IF_ERROR(simulation.Prepare());
    return simulation.Run();
  }
  WEFT_ASSIGN_OR_RETURN(Expansion expansion, Expand(workload));
  packet::PacketSimulation simulation(fabric, expansion.workload, options);
  WEFT_RETURN_IF_ERROR(simulation.Prepare());
  return Contract(expansion, simulation.Run());
}

}  // namespace weft::topology
