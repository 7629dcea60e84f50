// The entry of the packet level: starts operations when what they wait for has ended, and collects
// what became of them.
#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
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
        network_(fabric_, options_, *this) {}

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
  using Connection = std::array<int32_t, 5>;
  Connection ConnectionOf(const Operation& operation) const {
    return {operation.source.host.value(), operation.source.nic, operation.target.host.value(),
            operation.target.nic, operation.source_port};
  }
  absl::Status PrepareTransfer(OperationId id);
  Picoseconds OneWay(NicId source, NicId target, uint64_t path, uint32_t size) const;
  void FindDependents();
  void Ready(OperationId id, Picoseconds now);
  void Start(OperationId id, Picoseconds now);
  void Finish(OperationId id, Picoseconds now);
  void ApplyFault(const LinkFault& fault);
  SimulationResult Collect();

  Fabric fabric_;
  const Workload& workload_;
  const PacketOptions& options_;
  Routes routes_;
  Network network_;
  Arena arena_;
  TransportContext context_;
  std::unique_ptr<Transports> transports_;
  LargeVector<Transfer> transfers_;         // [operation]
  std::vector<State> states_;               // [operation]
  std::vector<Picoseconds> core_free_;      // [core - 1] when its computations so far have ended
  std::vector<uint32_t> dependents_begin_;  // [operation + 1] into dependents_
  std::vector<OperationId> dependents_;
  std::vector<OperationId> finished_;  // and what depends on them is not yet started
  // Operation::in_order: by connection that sends, those that wait for it; and transfers whose last
  // packet has just gone.
  absl::flat_hash_map<Connection, std::deque<OperationId>> queues_;
  std::vector<FlowId> sent_;
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
    const Link& port = network_.link_by_number(network_.nic(nic).first_link);
    context_.nic_rate.push_back(port.rate.bytes_per_picosecond());
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
  transports_ = MakeTransports(context_, workload_.size());
  for (NicId nic = 0; nic < static_cast<NicId>(fabric_.endpoints()); ++nic) {
    network_.SetProtocol(nic, transports_->Make(nic));
  }
  FindDependents();
  return absl::OkStatus();
}

void PacketSimulation::FindDependents() {
  size_t count = workload_.size();
  dependents_begin_.assign(count + 1, 0);
  for (OperationId id = 0; id < count; ++id) {
    for (OperationId earlier : workload_.After(id)) ++dependents_begin_[earlier + 1];
    states_[id].waits_for = static_cast<uint32_t>(workload_.After(id).size());
  }
  for (size_t i = 0; i < count; ++i) dependents_begin_[i + 1] += dependents_begin_[i];
  dependents_.resize(dependents_begin_[count]);
  std::vector<uint32_t> at(dependents_begin_.begin(), dependents_begin_.end() - 1);
  for (OperationId id = 0; id < count; ++id) {
    for (OperationId earlier : workload_.After(id)) dependents_[at[earlier]++] = id;
  }
}

SimulationResult PacketSimulation::Run() {
  for (uint32_t i = 0; i < options_.faults.size(); ++i) {
    network_.timers().Push({FromDuration(options_.faults[i].at), TimerKind::kFault, i, 0});
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
        auto [queue, is_free] = queues_.try_emplace(ConnectionOf(operation));
        if (!is_free) {
          queue->second.push_back(id);
          return;
        }
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
    auto queue = queues_.find(ConnectionOf(workload_.operation(flow)));
    if (queue->second.empty()) {
      queues_.erase(queue);
      continue;
    }
    OperationId next = queue->second.front();
    queue->second.pop_front();
    network_.Follow(transfers_[next].source, next, std::max(now, states_[next].started));
  }
  sent_.clear();
}

void PacketSimulation::OnProgress(Picoseconds now) {
  // Starting one may finish it at once.
  for (size_t i = 0; i < finished_.size(); ++i) {
    OperationId id = finished_[i];
    for (uint32_t k = dependents_begin_[id]; k < dependents_begin_[id + 1]; ++k) {
      if (--states_[dependents_[k]].waits_for == 0) Ready(dependents_[k], now);
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
  fabric_.SetUp(fault.link, up);
  network_.SetLinkUp(fault.link, up);
  if (!fault.reroute) return;
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
  int64_t full = (options.payload + options.header).count();
  WEFT_RETURN_IF_ERROR(CheckRange(options.payload > Bytes(0) && full <= 65535, "payload and header",
                                  absl::StrCat(full, " bytes"), "1 to 65535"));
  WEFT_RETURN_IF_ERROR(
      CheckRange(options.header >= Bytes(0), "the header", ToString(options.header), "at least 0"));
  WEFT_RETURN_IF_ERROR(
      CheckRange(options.ack_size >= Bytes(kMinimumFrame) && options.ack_size <= Bytes(65535),
                 "the size of acknowledgements", ToString(options.ack_size), "64 to 65535 bytes"));
  WEFT_RETURN_IF_ERROR(CheckRange(options.ack_every > 0, "packets an acknowledgement",
                                  absl::StrCat(options.ack_every), "at least 1"));
  WEFT_RETURN_IF_ERROR(CheckRange(!options.ecn.enabled || options.ecn.min <= options.ecn.max,
                                  "ECN's lower threshold", ToString(options.ecn.min),
                                  absl::StrCat("at most the upper, ", ToString(options.ecn.max))));
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
