#include "topology/sim/packet/transports/selective.h"

#include <bit>
#include <cstring>

namespace weft::topology::packet {
namespace {

bool GetBit(const uint64_t* bits, uint32_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
void SetBit(uint64_t* bits, uint32_t i) { bits[i / 64] |= uint64_t{1} << (i % 64); }
void ClearBit(uint64_t* bits, uint32_t i) { bits[i / 64] &= ~(uint64_t{1} << (i % 64)); }

size_t BitBytes(uint32_t mask) { return (mask / 64 + 1) * sizeof(uint64_t); }

uint64_t* NewBits(Arena& arena, uint32_t mask) {
  void* memory = arena.Allocate(BitBytes(mask));
  std::memset(memory, 0, BitBytes(mask));
  return static_cast<uint64_t*>(memory);
}

// RFC 9002's threshold where a flow keeps to one path; sprayed packets overtake each other.
uint32_t DefaultReordering(const PacketOptions& options) {
  return options.load_balance == LoadBalance::kEcmp ? 3 : 0;
}

}  // namespace

Selective::Selective(const TransportContext& context, NicId nic, SelectiveState& state)
    : ReliableProtocol(context, nic),
      state_(state),
      reordering_(context.options->reordering > 0
                      ? static_cast<uint32_t>(context.options->reordering)
                      : DefaultReordering(*context.options)) {}

int64_t Selective::WindowFor(FlowId flow) const {
  if (context_.options->window > Bytes(0)) return context_.options->window.count();
  double held = static_cast<double>(context_.transfers[flow].round_trip) * context_.RateOf(flow);
  return static_cast<int64_t>(1.5 * held) + context_.full_size;
}

// How far ahead of the oldest missing packet others may be: twice the window, but no more than
// there are packets. A power of two.
uint32_t Selective::SpanFor(FlowId flow) const {
  const int64_t packets = context_.transfers[flow].packets;
  const int64_t window = std::min(WindowFor(flow) / context_.full_size + 1, packets);
  return std::bit_ceil(static_cast<uint32_t>(std::max<int64_t>(64, std::min(2 * window, packets))));
}

void Selective::Begin(FlowId flow, Picoseconds /*now*/) {
  SelectiveSender& sender = state_.senders[flow];
  sender.packets = context_.transfers[flow].packets;
  sender.window = WindowFor(flow);
  sender.mask = SpanFor(flow) - 1;
  sender.heard = NewBits(*context_.arena, sender.mask);
  sender.lost = NewBits(*context_.arena, sender.mask);
  sender.orders =
      static_cast<uint32_t*>(context_.arena->Allocate((sender.mask + 1) * sizeof(uint32_t)));
  sender.congestion = context_.MakeCongestion(flow);
  Activate(flow, sender.is_active);
}

// Late frames of a transfer that has ended find it so.
void Selective::End(SelectiveSender& sender) {
  Arena& arena = *context_.arena;
  arena.Free(sender.heard, BitBytes(sender.mask));
  arena.Free(sender.lost, BitBytes(sender.mask));
  arena.Free(sender.orders, (sender.mask + 1) * sizeof(uint32_t));
  sender.heard = sender.lost = nullptr;
  sender.orders = nullptr;
  sender.transmissions.Release(arena);
  sender.again.Release(arena);
  sender.congestion.reset();
}

bool Selective::MaySend(FlowId flow) {
  const SelectiveSender& sender = state_.senders[flow];
  if (sender.acknowledged == sender.packets) return false;
  int64_t window = sender.congestion ? sender.congestion->window() : sender.window;
  if (sender.in_flight >= window) return false;
  if (!sender.again.empty()) return true;
  return sender.next < sender.packets && sender.next - sender.acknowledged <= sender.mask;
}

void Selective::FillData(FlowId flow, Picoseconds now, Frame& frame) {
  SelectiveSender& sender = state_.senders[flow];
  uint32_t sequence;
  // What was lost and then heard of after all has left `lost`, but is still in `again`.
  if (!sender.again.empty()) {
    sequence = sender.again.PopFront();
    ClearBit(sender.lost, sequence & sender.mask);
    frame.flags |= kRetransmit;
    context_.progress->Retransmitted(flow);
    SkipHeard(sender);
  } else {
    sequence = sender.next++;
    if (sender.next == context_.transfers[flow].packets) context_.progress->Sent(flow);
  }
  frame.sequence = sequence;
  frame.size = context_.SizeOf(flow, sequence);
  frame.order = sender.order++;
  sender.orders[sequence & sender.mask] = frame.order;
  sender.in_flight += frame.size;
  sender.transmissions.PushBack({now, sequence, frame.order}, *context_.arena);
  if (sender.congestion && sender.congestion->rate() > 0) {
    sender.next_send = std::max(sender.next_send, now) +
                       static_cast<Picoseconds>(frame.size / sender.congestion->rate());
  }
  if (sender.has_timer) return;
  sender.has_timer = true;
  SetTimer(flow, now + context_.timeout);
}

// So that the front of `again` is always to be sent.
void Selective::SkipHeard(SelectiveSender& sender) {
  while (!sender.again.empty()) {
    uint32_t sequence = sender.again.front();
    if (sequence >= sender.acknowledged && GetBit(sender.lost, sequence & sender.mask)) return;
    sender.again.PopFront();
  }
}

void Selective::Receive(const Frame& frame, Picoseconds now) {
  switch (frame.kind) {
    case FrameKind::kData:
      OnData(frame, now);
      AfterData(frame, now);
      break;
    case FrameKind::kAck:
      OnAck(frame, now);
      break;
    case FrameKind::kNack:
      OnNack(frame, now);
      break;
    default:
      break;
  }
}

void Selective::Prefetch(const Frame& frame, int stage) const {
  auto fetch = [](const void* memory) { __builtin_prefetch(memory, 1); };
  if (stage == 0) fetch(&context_.transfers[frame.flow]);
  if (frame.kind == FrameKind::kData) {
    const SelectiveReceiver& receiver = state_.receivers[frame.flow];
    if (stage == 0) fetch(&receiver);
    if (stage == 1) PrefetchReply();
    if (stage == 1 && receiver.arrived != nullptr) {
      fetch(&receiver.arrived[(frame.sequence & receiver.mask) / 64]);
    }
    return;
  }
  const SelectiveSender& sender = state_.senders[frame.flow];
  if (stage == 0) {
    fetch(&sender);
    fetch(&sender.orders);
    return;
  }
  if (sender.heard == nullptr) return;
  if (stage == 1) {
    fetch(&sender.heard[(frame.sequence & sender.mask) / 64]);
    fetch(&sender.lost[(frame.sequence & sender.mask) / 64]);
    fetch(&sender.orders[sender.next & sender.mask]);
    fetch(sender.transmissions.end());
    if (!sender.transmissions.empty()) fetch(&sender.transmissions.front());
    if (sender.congestion) {
      fetch(sender.congestion.get());
      fetch(reinterpret_cast<const char*>(sender.congestion.get()) + 64);
      fetch(reinterpret_cast<const char*>(sender.congestion.get()) + 128);
    }
  } else if (!sender.transmissions.empty()) {
    fetch(&sender.orders[sender.transmissions.front().sequence & sender.mask]);
  }
}

void Selective::OnData(const Frame& frame, Picoseconds now) {
  SelectiveReceiver& receiver = state_.receivers[frame.flow];
  uint32_t packets = context_.transfers[frame.flow].packets;
  bool is_new = frame.sequence >= receiver.expected;
  if (is_new && receiver.arrived == nullptr) {
    receiver.mask = SpanFor(frame.flow) - 1;
    receiver.arrived = NewBits(*context_.arena, receiver.mask);
  }
  is_new = is_new && !GetBit(receiver.arrived, frame.sequence & receiver.mask);
  if (is_new && (frame.flags & kTrimmed)) {
    PushReply(frame, FrameKind::kNack, receiver.expected, frame.flags & kMarked);
    return;
  }
  if (is_new) {
    SetBit(receiver.arrived, frame.sequence & receiver.mask);
    while (receiver.expected < packets &&
           GetBit(receiver.arrived, receiver.expected & receiver.mask)) {
      ClearBit(receiver.arrived, receiver.expected++ & receiver.mask);
    }
    if (receiver.expected == packets) {
      context_.arena->Free(receiver.arrived, BitBytes(receiver.mask));
      receiver.arrived = nullptr;
      context_.progress->Delivered(frame.flow, now);
    }
  }
  PushReply(frame, FrameKind::kAck, receiver.expected, frame.flags & kMarked);
}

int64_t Selective::Hear(FlowId flow, SelectiveSender& sender, uint32_t sequence) {
  uint32_t at = sequence & sender.mask;
  if (GetBit(sender.heard, at)) return 0;
  SetBit(sender.heard, at);
  int64_t size = context_.SizeOf(flow, sequence);
  if (GetBit(sender.lost, at)) {
    ClearBit(sender.lost, at);
  } else {
    sender.in_flight -= size;
  }
  return size;
}

bool Selective::Lose(FlowId flow, SelectiveSender& sender, uint32_t sequence) {
  uint32_t at = sequence & sender.mask;
  if (GetBit(sender.lost, at)) return false;
  SetBit(sender.lost, at);
  sender.again.PushBack(sequence, *context_.arena);
  sender.in_flight -= context_.SizeOf(flow, sequence);
  return true;
}

void Selective::OnAck(const Frame& frame, Picoseconds now) {
  SelectiveSender& sender = state_.senders[frame.flow];
  if (sender.acknowledged == sender.packets) return;
  int64_t bytes = 0;
  if (frame.sequence >= sender.acknowledged) bytes += Hear(frame.flow, sender, frame.sequence);
  while (sender.acknowledged < frame.acknowledged ||
         (sender.acknowledged < sender.next &&
          GetBit(sender.heard, sender.acknowledged & sender.mask))) {
    bytes += Hear(frame.flow, sender, sender.acknowledged);
    ClearBit(sender.heard, sender.acknowledged++ & sender.mask);
  }
  SkipHeard(sender);
  if (sender.acknowledged == sender.packets) {
    context_.progress->Acknowledged(frame.flow, now);
    End(sender);
    return;
  }
  if (sender.congestion && bytes > 0) {
    sender.congestion->OnAck(
        {now, now - frame.sent, bytes, sender.in_flight, (frame.flags & kMarked) != 0});
  }
  sender.order_heard = std::max(sender.order_heard, frame.order + 1);
  FindLost(frame.flow, sender, now);
  Activate(frame.flow, sender.is_active);
}

// Whether nothing more can be learned from a transmission: its packet has arrived, is known to be
// lost, or was sent again since.
bool Selective::IsStale(const SelectiveSender& sender, const Transmission& transmission) {
  uint32_t at = transmission.sequence & sender.mask;
  return transmission.sequence < sender.acknowledged || GetBit(sender.heard, at) ||
         GetBit(sender.lost, at) || sender.orders[at] != transmission.order;
}

void Selective::FindLost(FlowId flow, SelectiveSender& sender, Picoseconds now) {
  int64_t bytes = 0;
  while (!sender.transmissions.empty()) {
    const Transmission oldest = sender.transmissions.front();
    if (!IsStale(sender, oldest)) {
      if (reordering_ == 0 || oldest.order + reordering_ >= sender.order_heard) break;
      Lose(flow, sender, oldest.sequence);
      bytes += context_.SizeOf(flow, oldest.sequence);
    }
    sender.transmissions.PopFront();
  }
  if (bytes > 0 && sender.congestion) sender.congestion->OnLoss(now, bytes, sender.in_flight);
}

void Selective::OnNack(const Frame& frame, Picoseconds now) {
  SelectiveSender& sender = state_.senders[frame.flow];
  if (frame.sequence < sender.acknowledged || sender.acknowledged == sender.packets) return;
  uint32_t at = frame.sequence & sender.mask;
  if (GetBit(sender.heard, at) || sender.orders[at] != frame.order) return;
  if (Lose(frame.flow, sender, frame.sequence) && sender.congestion) {
    sender.congestion->OnLoss(now, context_.SizeOf(frame.flow, frame.sequence), sender.in_flight);
  }
  Activate(frame.flow, sender.is_active);
}

Picoseconds Selective::OnTimer(FlowId flow, Picoseconds now) {
  SelectiveSender& sender = state_.senders[flow];
  if (sender.acknowledged == sender.packets) return kNever;
  uint32_t given_up = 0;
  while (!sender.transmissions.empty()) {
    const Transmission oldest = sender.transmissions.front();
    if (!IsStale(sender, oldest)) {
      if (oldest.sent + context_.timeout > now) break;
      Lose(flow, sender, oldest.sequence);
      ++given_up;
    }
    sender.transmissions.PopFront();
  }
  if (given_up > 0) {
    if (sender.congestion) sender.congestion->OnTimeout(now);
    AfterTimeout(sender, given_up);
    Activate(flow, sender.is_active);
  }
  if (!sender.transmissions.empty()) return sender.transmissions.front().sent + context_.timeout;
  Picoseconds again = WhenIdle(flow, sender, now);
  sender.has_timer = again != kNever;
  return again;
}

}  // namespace weft::topology::packet
