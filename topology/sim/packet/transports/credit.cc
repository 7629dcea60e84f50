#include "topology/sim/packet/transports/credit.h"

namespace weft::topology::packet {

uint32_t Credit::FirstWindow(FlowId flow) const {
  const int64_t window = std::max<int64_t>(1, WindowFor(flow) / context_.full_size);
  return static_cast<uint32_t>(std::min<int64_t>(window, context_.transfers[flow].packets));
}

void Credit::Begin(FlowId flow, Picoseconds now) {
  state_.senders[flow].credit = FirstWindow(flow);
  Selective::Begin(flow, now);
}

// Credits alone bound what is in flight.
bool Credit::MaySend(FlowId flow) {
  const SelectiveSender& sender = state_.senders[flow];
  if (sender.acknowledged == sender.packets || sender.order >= sender.credit) return false;
  if (!sender.again.empty()) return true;
  return sender.next < sender.packets && sender.next - sender.acknowledged <= sender.mask;
}

void Credit::Receive(const Frame& frame, Picoseconds now) {
  if (frame.kind != FrameKind::kCredit) {
    Selective::Receive(frame, now);
    return;
  }
  SelectiveSender& sender = state_.senders[frame.flow];
  if (sender.acknowledged == sender.packets || frame.credit <= sender.credit) return;
  sender.credit = frame.credit;
  Activate(frame.flow, sender.is_active);
}

// The timeout is for packets that left no trace, so that no credit came for them either.
void Credit::AfterTimeout(SelectiveSender& sender, uint32_t packets) {
  sender.credit = std::max(sender.credit, sender.order + packets);
}

// All that was sent has arrived, but credits have not: they or the packets that they are owed for
// were lost. A few packets ask for more.
Picoseconds Credit::WhenIdle(FlowId flow, SelectiveSender& sender, Picoseconds now) {
  constexpr uint32_t kProbe = 8;
  if (sender.order >= sender.credit) sender.credit = sender.order + kProbe;
  Activate(flow, sender.is_active);
  return now + context_.timeout;
}

uint32_t Credit::Owed(FlowId flow) const {
  const SelectiveReceiver& receiver = state_.receivers[flow];
  uint32_t packets = context_.transfers[flow].packets;
  if (receiver.expected == packets) return 0;
  uint32_t needed = packets + receiver.trimmed - FirstWindow(flow);
  uint32_t owed = std::min(needed, receiver.arrivals);
  return owed > receiver.granted ? owed - receiver.granted : 0;
}

void Credit::AfterData(const Frame& frame, Picoseconds /*now*/) {
  SelectiveReceiver& receiver = state_.receivers[frame.flow];
  ++receiver.arrivals;
  if (frame.flags & kTrimmed) ++receiver.trimmed;
  if (receiver.is_queued || Owed(frame.flow) == 0) return;
  receiver.is_queued = true;
  owed_.PushBack(frame.flow, *context_.arena);
}

bool Credit::PacedControl(Picoseconds now, Frame& frame, Picoseconds& due) {
  while (!owed_.empty()) {
    if (next_credit_ > now) {
      due = next_credit_;
      return false;
    }
    FlowId flow = owed_.PopFront();
    SelectiveReceiver& receiver = state_.receivers[flow];
    receiver.is_queued = false;
    if (Owed(flow) == 0) continue;
    const Transfer& transfer = context_.transfers[flow];
    frame = Frame();
    frame.kind = FrameKind::kCredit;
    frame.flow = flow;
    frame.source = nic_;
    frame.target = transfer.source;
    frame.path = transfer.path_back;
    frame.sent = now;
    frame.size = context_.ack_size;
    frame.source_port = transfer.source_port;
    frame.credit = FirstWindow(flow) + ++receiver.granted;
    next_credit_ = std::max(next_credit_, now) +
                   static_cast<Picoseconds>(context_.full_size / context_.nic_rate[nic_]);
    if (Owed(flow) == 0) return true;
    receiver.is_queued = true;
    owed_.PushBack(flow, *context_.arena);
    return true;
  }
  return false;
}

}  // namespace weft::topology::packet
