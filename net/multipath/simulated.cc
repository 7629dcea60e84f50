#include "net/multipath/simulated.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/random.h"
#include "net/cc/credit.h"
#include "net/multipath/packet_pool.h"
#include "net/multipath/receiver.h"
#include "net/multipath/simulated_time.h"

namespace weft::net::multipath {
namespace {

using topology::packet::FlowId;
using topology::packet::Frame;
using topology::packet::FrameKind;
using topology::packet::kNever;
using topology::packet::NicId;
using topology::packet::Picoseconds;
using topology::packet::Protocol;
using topology::packet::TransportContext;
using topology::packet::Transports;

constexpr uint32_t kPosted = 64;      // receives that each connection has posted
constexpr uint32_t kProbe = ~0u;      // Frame::sequence of one
constexpr int kQuantumPackets = 2;    // of a grant
constexpr int64_t kDemandUnit = 256;  // bytes, of Frame::payload

struct Connection {
  Connection(const SenderOptions& send, const ReceiverOptions& receive, absl::Time now)
      : sender(send, now), receiver(receive, now) {}
  Sender sender;
  Receiver receiver;
  NicId source = 0, target = 0;
  const topology::packet::Transfer* transfers = nullptr;
  uint64_t path = 0, path_back = 0;
  std::vector<FlowId> flows;  // by message
  size_t flows_sent = 0;      // those whose Send() was taken
  uint64_t posts = 0;
  Bytes first_credit;
  bool sender_listed = false, receiver_listed = false;
  Picoseconds sender_due = kNever, receiver_due = kNever;
};

// What all NICs share.
struct Shared {
  Shared(const TransportContext& of, const SimulatedOptions& with, size_t flows)
      : context(of), options(with), connection_of(flows, ~0u) {}
  const TransportContext& context;
  const SimulatedOptions options;
  std::vector<uint32_t> connection_of;  // [flow]
  std::deque<Connection> connections;
  absl::flat_hash_map<uint64_t, uint32_t> by_pair;  // source << 32 | target
  PacketPool packets;
  absl::Time traced = absl::InfinitePast();
};

class MultipathProtocol final : public Protocol {
 public:
  MultipathProtocol(Shared& shared, NicId nic)
      : shared_(shared),
        nic_(nic),
        credits_(RateOf(nic), Bytes(kQuantumPackets * int64_t{shared.context.full_size})) {}

  void Begin(FlowId flow, Picoseconds now) override {
    uint32_t id = ConnectionFor(flow, now);
    Connection& connection = shared_.connections[id];
    shared_.connection_of[flow] = id;
    connection.flows.push_back(flow);
    OfferFlows(connection);
    ListSender(id);
  }

  void Receive(const Frame& frame, Picoseconds now) override {
    if (frame.kind == FrameKind::kAck) return OnAck(frame, now);
    uint32_t id = shared_.connection_of[frame.flow];
    Connection& connection = shared_.connections[id];
    Packet& packet = incoming_;
    packet.type = frame.sequence == kProbe ? PacketType::kProbe : PacketType::kData;
    packet.path = frame.source_port;
    packet.source = packet.target = 1;
    packet.number = frame.order;
    packet.floor = frame.acknowledged;
    packet.demand = uint64_t{frame.payload} * kDemandUnit;
    uint32_t chunk_bytes = 0;
    if (packet.type == PacketType::kData) {
      auto chunk = static_cast<uint64_t>(shared_.context.options->payload.count());
      packet.message = frame.credit;
      packet.offset = frame.sequence * chunk;
      packet.length = static_cast<uint64_t>(shared_.context.transfers[frame.flow].bytes);
      chunk_bytes = static_cast<uint32_t>(std::min(chunk, packet.length - packet.offset));
    }
    absl::Time time = ToTime(now);
    connection.receiver.Receive({.packet = packet,
                                 .chunk_bytes = chunk_bytes,
                                 .marked = (frame.flags & topology::packet::kMarked) != 0,
                                 .trimmed = (frame.flags & topology::packet::kTrimmed) != 0},
                                time);
    Completion done;
    while (connection.receiver.TakeCompletion(done)) {
      shared_.context.progress->Delivered(connection.flows[done.cookie], now);
      connection.receiver.Post(connection.posts++, nullptr, kMessageBytesMax);
    }
    if (HasCredits()) {
      CreditPacer::Sender local = LocalOf(id, connection);
      credits_.Arrived(local, Bytes(chunk_bytes), time);
      credits_.Demand(local, Bytes(static_cast<int64_t>(connection.receiver.demand())));
    }
    ListReceiver(id);
  }

  bool Transmit(Picoseconds now, bool data_allowed, Frame& frame) override {
    absl::Time time = ToTime(now);
    while (!timers_.empty() && timers_.front().due <= now) FireTimer();
    Grant(time);
    if (NextAck(now, time, frame)) return true;
    if (data_allowed && NextData(now, time, frame)) return true;
    deadline_ = timers_.empty() ? kNever : timers_.front().due;
    if (HasCredits()) deadline_ = std::min(deadline_, FromTime(credits_.deadline()));
    deadline_ = std::max(deadline_, now + 1);
    return false;
  }

 private:
  struct Timer {
    Picoseconds due;
    uint32_t id;
    bool is_sender;
    bool operator<(const Timer& other) const {  // of a heap: the earliest on top
      if (due != other.due) return due > other.due;
      return id != other.id ? id > other.id : is_sender < other.is_sender;
    }
  };

  Bandwidth RateOf(NicId nic) const {
    return Bandwidth::BytesPerSecond(shared_.context.nic_rate[nic] * 1e12);
  }
  bool HasCredits() const { return shared_.options.controller.kind == ControllerKind::kCredit; }

  uint32_t ConnectionFor(FlowId flow, Picoseconds now);
  void Open(Connection& connection, absl::Time now);
  static void OfferFlows(Connection& connection) {
    while (connection.flows_sent < connection.flows.size()) {
      FlowId flow = connection.flows[connection.flows_sent];
      auto bytes = static_cast<uint64_t>(connection.transfers[flow].bytes);
      if (!connection.sender.Send(flow, nullptr, bytes)) return;
      ++connection.flows_sent;
    }
  }

  void ListSender(uint32_t id) {
    Connection& connection = shared_.connections[id];
    if (std::exchange(connection.sender_listed, true)) return;
    senders_.push_back(id);
  }
  void ListReceiver(uint32_t id) {
    Connection& connection = shared_.connections[id];
    if (std::exchange(connection.receiver_listed, true)) return;
    receivers_.push_back(id);
  }
  void SetTimer(uint32_t id, bool is_sender, absl::Time deadline, Picoseconds now) {
    Picoseconds due = FromTime(deadline);
    Connection& connection = shared_.connections[id];
    Picoseconds& armed = is_sender ? connection.sender_due : connection.receiver_due;
    if (due == kNever || (armed <= due && armed > now)) return;  // the earlier one will look again
    armed = std::max(due, now + 1);
    timers_.push_back({armed, id, is_sender});
    std::push_heap(timers_.begin(), timers_.end());
  }
  void FireTimer() {
    Timer timer = timers_.front();
    std::pop_heap(timers_.begin(), timers_.end());
    timers_.pop_back();
    Connection& connection = shared_.connections[timer.id];
    Picoseconds& armed = timer.is_sender ? connection.sender_due : connection.receiver_due;
    if (armed != timer.due) return;
    armed = kNever;
    if (timer.is_sender) {
      ListSender(timer.id);
    } else {
      ListReceiver(timer.id);
    }
  }

  void OnAck(const Frame& frame, Picoseconds now);
  bool NextAck(Picoseconds now, absl::Time time, Frame& frame);
  bool NextData(Picoseconds now, absl::Time time, Frame& frame);
  void FillData(const Connection& connection, const Outgoing& out, Picoseconds now, Frame& frame);
  void Grant(absl::Time time);
  void Trace(absl::Time time, uint32_t id);
  CreditPacer::Sender LocalOf(uint32_t id, const Connection& connection) {
    auto [entry, is_new] =
        local_.try_emplace(id, static_cast<CreditPacer::Sender>(connection_of_local_.size()));
    if (is_new) {
      connection_of_local_.push_back(id);
      credits_.Add(entry->second, connection.first_credit);
    }
    return entry->second;
  }

  Shared& shared_;
  const NicId nic_;
  std::deque<uint32_t> senders_, receivers_;  // that may have something to say, in turn
  std::vector<Timer> timers_;
  CreditPacer credits_;
  absl::flat_hash_map<uint32_t, CreditPacer::Sender> local_;
  std::vector<uint32_t> connection_of_local_;
  Packet incoming_, answer_;
  Outgoing outgoing_;
};

uint32_t MultipathProtocol::ConnectionFor(FlowId flow, Picoseconds now) {
  const TransportContext& context = shared_.context;
  const topology::packet::Transfer& transfer = context.transfers[flow];
  uint64_t pair = uint64_t{transfer.source} << 32 | transfer.target;
  auto [entry, is_new] =
      shared_.by_pair.try_emplace(pair, static_cast<uint32_t>(shared_.connections.size()));
  if (!is_new) return entry->second;
  SimulatedOptions options = shared_.options;
  if (options.vary) options.vary(transfer.source, options);
  SenderOptions send;
  send.chunk = static_cast<uint32_t>(context.options->payload.count());
  send.overhead = static_cast<uint32_t>(context.options->header.count());
  send.messages = kPosted;
  send.facts = {.base_rtt = ToTime(transfer.round_trip) - absl::UnixEpoch(),
                .bandwidth = RateOf(transfer.source),
                .packet = Bytes(context.full_size),
                .hops = options.hops,
                .trimming = context.options->trimming};
  auto held = static_cast<uint32_t>(send.facts.product() / send.facts.packet) + 1;
  send.numbers = std::bit_ceil(std::clamp(4 * held, 64u, kNumbersMax));
  send.controller = options.controller;
  send.paths.paths = options.paths;
  send.paths.leaves = options.leaves_dead_paths;
  send.paths.probe_interval = std::max(absl::Microseconds(50), 4 * send.facts.base_rtt);
  send.policy.kind = options.policy;
  send.policy.planned = options.planned;
  send.policy.seed = transfer.path;
  send.piece = options.piece;
  send.held_max = absl::ZeroDuration();
  send.timeout_min = std::max(options.timeout_min, 2 * send.facts.base_rtt);
  send.timeout_max = absl::Milliseconds(10);
  send.keepalive = absl::Hours(1);
  ReceiverOptions receive;
  receive.messages = kPosted;
  receive.ack_every = options.ack_every;
  receive.give_up = absl::Hours(100);
  receive.grants_credit = HasCredits();
  receive.credit = static_cast<uint64_t>(send.facts.product().count());
  Connection& connection = shared_.connections.emplace_back(send, receive, ToTime(now));
  connection.source = transfer.source;
  connection.target = transfer.target;
  connection.path = transfer.path;
  connection.path_back = transfer.path_back;
  connection.transfers = context.transfers;
  connection.first_credit = send.facts.product();
  Open(connection, ToTime(now));
  return entry->second;
}

// Receives posted and the handshake made, in no time.
void MultipathProtocol::Open(Connection& connection, absl::Time now) {
  while (connection.receiver.Post(connection.posts, nullptr, kMessageBytesMax)) {
    ++connection.posts;
  }
  Outgoing out;
  Packet answer;
  while (connection.sender.Next(now, out)) {
    connection.receiver.Receive({.packet = out.packet}, now);
    while (connection.receiver.Next(now, answer)) connection.sender.Receive(answer, now);
    if (connection.sender.state() == ConnectionState::kOpen) break;
  }
}

void MultipathProtocol::OnAck(const Frame& frame, Picoseconds now) {
  PacketPool::Handle handle{frame.payload, frame.credit};
  if (!shared_.packets.IsValid(handle)) return;
  Connection& connection = shared_.connections[frame.flow];
  connection.sender.Receive(shared_.packets[handle.slot], ToTime(now));
  shared_.packets.Free(handle.slot);
  Completion done;
  while (connection.sender.TakeCompletion(done)) {
    shared_.context.progress->Acknowledged(static_cast<FlowId>(done.cookie), now);
  }
  OfferFlows(connection);
  ListSender(frame.flow);
}

void MultipathProtocol::Grant(absl::Time time) {
  if (!HasCredits()) return;
  while (auto grant = credits_.Next(time)) {
    uint32_t id = connection_of_local_[grant->sender];
    shared_.connections[id].receiver.Grant(static_cast<uint64_t>(grant->limit.count()));
    ListReceiver(id);
  }
}

bool MultipathProtocol::NextAck(Picoseconds now, absl::Time time, Frame& frame) {
  while (!receivers_.empty()) {
    uint32_t id = receivers_.front();
    Connection& connection = shared_.connections[id];
    if (!connection.receiver.Next(time, answer_)) {
      receivers_.pop_front();
      connection.receiver_listed = false;
      SetTimer(id, false, connection.receiver.deadline(), now);
      continue;
    }
    PacketPool::Handle handle = shared_.packets.Allocate(now);
    std::swap(shared_.packets[handle.slot], answer_);
    uint64_t state = connection.path_back + shared_.packets[handle.slot].path;
    frame.path = SplitMix64(state);
    frame.sent = now;
    frame.source = nic_;
    frame.target = connection.source;
    frame.flow = id;  // of a connection, not of a transfer
    frame.sequence = frame.acknowledged = frame.order = 0;
    frame.payload = handle.slot;
    frame.credit = handle.generation;
    frame.size = shared_.context.ack_size;
    frame.source_port = 0;
    frame.kind = FrameKind::kAck;
    return true;
  }
  return false;
}

void MultipathProtocol::FillData(const Connection& connection, const Outgoing& out, Picoseconds now,
                                 Frame& frame) {
  const Packet& packet = out.packet;
  const TransportContext& context = shared_.context;
  bool is_probe = packet.type == PacketType::kProbe;
  FlowId flow = is_probe ? connection.flows.back() : connection.flows[packet.message];
  uint64_t state = connection.path + packet.path;
  frame.path = SplitMix64(state);
  frame.sent = now;
  frame.source = nic_;
  frame.target = connection.target;
  frame.flow = flow;
  frame.sequence =
      is_probe ? kProbe
               : static_cast<uint32_t>(packet.offset /
                                       static_cast<uint64_t>(context.options->payload.count()));
  frame.acknowledged = static_cast<uint32_t>(packet.floor);
  frame.order = static_cast<uint32_t>(packet.number);
  frame.credit = static_cast<uint32_t>(packet.message);
  frame.payload = static_cast<uint32_t>((packet.demand + kDemandUnit - 1) / kDemandUnit);
  frame.source_port = packet.path;
  frame.kind = is_probe ? FrameKind::kOther : FrameKind::kData;
  int64_t size = int64_t{out.chunk_bytes} + context.options->header.count();
  frame.size = static_cast<uint16_t>(
      std::max<int64_t>(is_probe ? context.ack_size : size, topology::packet::kMinimumFrame));
  if (is_probe) return;
  if (out.is_retransmission) {
    frame.flags |= topology::packet::kRetransmit;
    context.progress->Retransmitted(flow);
  } else if (packet.offset + out.chunk_bytes == packet.length) {
    context.progress->Sent(flow);
  }
}

bool MultipathProtocol::NextData(Picoseconds now, absl::Time time, Frame& frame) {
  while (!senders_.empty()) {
    uint32_t id = senders_.front();
    senders_.pop_front();
    Connection& connection = shared_.connections[id];
    if (!connection.sender.Next(time, outgoing_)) {
      connection.sender_listed = false;
      SetTimer(id, true, connection.sender.deadline(), now);
      continue;
    }
    senders_.push_back(id);
    FillData(connection, outgoing_, now, frame);
    Trace(time, id);
    return true;
  }
  return false;
}

void MultipathProtocol::Trace(absl::Time time, uint32_t /*id*/) {
  const TraceOptions& trace = shared_.options.trace;
  if (trace.period <= absl::ZeroDuration() || time < shared_.traced + trace.period) return;
  shared_.traced = time;
  for (size_t i = 0; i < shared_.connections.size(); ++i) {
    trace.visit(time - absl::UnixEpoch(), static_cast<int>(i), shared_.connections[i].sender);
  }
}

class MultipathTransports final : public Transports {
 public:
  MultipathTransports(const TransportContext& context, const SimulatedOptions& options,
                      size_t flows)
      : shared_(context, options, flows) {}
  std::unique_ptr<Protocol> Make(NicId nic) override {
    return std::make_unique<MultipathProtocol>(shared_, nic);
  }

 private:
  Shared shared_;
};

}  // namespace

std::function<std::unique_ptr<Transports>(const TransportContext& context, size_t flows)>
SimulatedTransports(const SimulatedOptions& options) {
  return [options](const TransportContext& context, size_t flows) {
    return std::unique_ptr<Transports>(
        std::make_unique<MultipathTransports>(context, options, flows));
  };
}

}  // namespace weft::net::multipath
