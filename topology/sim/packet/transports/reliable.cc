#include "topology/sim/packet/transports/reliable.h"

#include "topology/sim/packet/transports/credit.h"
#include "topology/sim/packet/transports/go_back_n.h"
#include "topology/sim/packet/transports/selective.h"

namespace weft::topology::packet {

std::unique_ptr<CongestionControl> TransportContext::MakeCongestion(FlowId flow) const {
  if (!options->make_congestion) return nullptr;
  FlowFacts facts;
  facts.round_trip = transfers[flow].round_trip;
  facts.bytes_per_picosecond = RateOf(flow);
  facts.packet_bytes = full_size;
  facts.trimming = options->trimming;
  return options->make_congestion(facts);
}

void ReliableProtocol::Push(Due due) {
  timers_.push_back(due);
  std::push_heap(timers_.begin(), timers_.end());
  next_timer_ = timers_.front().time;
}

void ReliableProtocol::FireTimers(Picoseconds now) {
  while (next_timer_ <= now) {
    Due due = timers_.front();
    std::pop_heap(timers_.begin(), timers_.end());
    timers_.pop_back();
    next_timer_ = timers_.empty() ? kNever : timers_.front().time;
    if (due.is_turn) {
      turns_.PushBack(due.flow, *context_.arena);
      continue;
    }
    Picoseconds next = OnTimer(due.flow, now);
    if (next != kNever) SetTimer(due.flow, std::max(next, now + 1));
  }
}

void ReliableProtocol::PushReply(const Frame& data, FrameKind kind, uint32_t acknowledged,
                                 uint8_t flags) {
  control_.PushBack({data.sent, data.flow, data.sequence, acknowledged, data.order, kind, flags},
                    *context_.arena);
}

void ReliableProtocol::FillReply(const Reply& reply, Frame& frame) const {
  const Transfer& transfer = context_.transfers[reply.flow];
  frame.path = transfer.path_back;
  frame.sent = reply.sent;
  frame.source = nic_;
  frame.target = transfer.source;
  frame.flow = reply.flow;
  frame.sequence = reply.sequence;
  frame.acknowledged = reply.acknowledged;
  frame.order = reply.order;
  frame.size = context_.ack_size;
  frame.source_port = transfer.source_port;
  frame.kind = reply.kind;
  frame.flags = reply.flags;
}

bool ReliableProtocol::Transmit(Picoseconds now, bool data_allowed, Frame& frame) {
  if (next_timer_ <= now) FireTimers(now);
  if (!control_.empty()) {
    FillReply(control_.front(), frame);
    control_.DropFront();
    return true;
  }
  Picoseconds due = kNever;
  if (PacedControl(now, frame, due)) return true;
  while (data_allowed && !turns_.empty()) {
    FlowId flow = turns_.PopFront();
    if (!MaySend(flow)) {
      IsActive(flow) = false;
      continue;
    }
    if (Picoseconds time = NextSend(flow); time > now) {
      ActivateAt(flow, time);
      continue;
    }
    const Transfer& transfer = context_.transfers[flow];
    frame.path = transfer.path;
    frame.sent = now;
    frame.source = nic_;
    frame.target = transfer.target;
    frame.flow = flow;
    frame.source_port = transfer.source_port;
    frame.kind = FrameKind::kData;
    FillData(flow, now, frame);
    turns_.PushBack(flow, *context_.arena);
    return true;
  }
  deadline_ = std::min(due, next_timer_);
  return false;
}

std::unique_ptr<Transports> MakeTransports(const TransportContext& context, size_t flows) {
  if (context.options->make_transports) return context.options->make_transports(context, flows);
  switch (context.options->transport) {
    case TransportKind::kGoBackN:
      return std::make_unique<GoBackNTransports>(context, flows);
    case TransportKind::kSelective:
      return std::make_unique<SelectiveTransports<Selective>>(context, flows);
    case TransportKind::kCredit:
      return std::make_unique<SelectiveTransports<Credit>>(context, flows);
  }
  return nullptr;
}

}  // namespace weft::topology::packet
