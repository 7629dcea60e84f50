#include "topology/sim/packet/transports/go_back_n.h"

namespace weft::topology::packet {
namespace {

using Sender = GoBackNTransports::Sender;
using Receiver = GoBackNTransports::Receiver;

class GoBackN final : public ReliableProtocol {
 public:
  GoBackN(const TransportContext& context, NicId nic, std::vector<Sender>& senders,
          std::vector<Receiver>& receivers)
      : ReliableProtocol(context, nic), senders_(senders), receivers_(receivers) {}

  void Begin(FlowId flow, Picoseconds now) override {
    Sender& sender = senders_[flow];
    sender.packets = context_.transfers[flow].packets;
    sender.window = context_.options->window.count();
    sender.congestion = context_.MakeCongestion(flow);
    sender.progress = now;
    Activate(flow, sender.is_active);
  }

  void Receive(const Frame& frame, Picoseconds now) override {
    switch (frame.kind) {
      case FrameKind::kData:
        OnData(frame, now);
        break;
      case FrameKind::kAck:
        OnAck(frame, now);
        break;
      case FrameKind::kNack:
        OnAck(frame, now);
        GoBack(frame.flow, now);
        break;
      default:
        break;
    }
  }

 private:
  void Prefetch(const Frame& frame, int stage) const override {
    if (stage != 0) return;
    const void* state = frame.kind == FrameKind::kData
                            ? static_cast<const void*>(&receivers_[frame.flow])
                            : &senders_[frame.flow];
    __builtin_prefetch(state, 1);
    __builtin_prefetch(static_cast<const char*>(state) + 63, 1);
  }

  bool& IsActive(FlowId flow) override { return senders_[flow].is_active; }

  Picoseconds NextSend(FlowId flow) override { return senders_[flow].next_send; }

  bool MaySend(FlowId flow) override {
    const Sender& sender = senders_[flow];
    if (sender.next >= sender.packets) return false;
    int64_t window = sender.congestion ? sender.congestion->window() : sender.window;
    return window <= 0 || InFlight(sender) < window;
  }

  void FillData(FlowId flow, Picoseconds now, Frame& frame) override {
    Sender& sender = senders_[flow];
    if (sender.next == sender.acknowledged) sender.progress = now;
    frame.sequence = sender.next;
    frame.size = context_.SizeOf(flow, sender.next);
    if (sender.next < sender.highest) {
      frame.flags |= kRetransmit;
      context_.progress->Retransmitted(flow);
    }
    if (sender.next + 1 == sender.packets && sender.next >= sender.highest) {
      context_.progress->Sent(flow);
    }
    sender.highest = std::max(sender.highest, ++sender.next);
    if (sender.congestion && sender.congestion->rate() > 0) {
      sender.next_send = std::max(sender.next_send, now) +
                         static_cast<Picoseconds>(frame.size / sender.congestion->rate());
    }
    if (sender.has_timer) return;
    sender.has_timer = true;
    SetTimer(flow, now + context_.timeout);
  }

  Picoseconds OnTimer(FlowId flow, Picoseconds now) override {
    Sender& sender = senders_[flow];
    if (sender.next == sender.acknowledged) {  // nothing is in flight
      sender.has_timer = false;
      return kNever;
    }
    Picoseconds expiry = sender.progress + context_.timeout;
    if (now < expiry) return expiry;
    if (sender.congestion) sender.congestion->OnTimeout(now);
    sender.next = sender.acknowledged;
    sender.progress = now;
    Activate(flow, sender.is_active);
    return now + context_.timeout;
  }

  int64_t InFlight(const Sender& sender) const {
    return static_cast<int64_t>(sender.next - sender.acknowledged) * context_.full_size;
  }

  void OnData(const Frame& frame, Picoseconds now) {
    Receiver& receiver = receivers_[frame.flow];
    receiver.flags |= frame.flags & kMarked;
    bool is_whole = !(frame.flags & kTrimmed);
    if (frame.sequence == receiver.expected && is_whole) {
      ++receiver.expected;
      bool is_last = receiver.expected == context_.transfers[frame.flow].packets;
      if (is_last) context_.progress->Delivered(frame.flow, now);
      if (++receiver.unacknowledged < static_cast<uint32_t>(context_.options->ack_every) &&
          !is_last) {
        return;
      }
      Reply(frame, receiver, FrameKind::kAck);
    } else if (frame.sequence < receiver.expected) {
      Reply(frame, receiver, FrameKind::kAck);
    } else if (receiver.nacked != receiver.expected ||
               now - receiver.nacked_at >= NackInterval(frame.flow)) {
      receiver.nacked = receiver.expected;
      receiver.nacked_at = now;
      Reply(frame, receiver, FrameKind::kNack);
    }
  }

  Picoseconds NackInterval(FlowId flow) const {
    if (context_.nack_interval > 0) return context_.nack_interval;
    return 2 * context_.transfers[flow].round_trip;
  }

  void Reply(const Frame& data, Receiver& receiver, FrameKind kind) {
    PushReply(data, kind, receiver.expected, receiver.flags);
    receiver.flags = 0;
    receiver.unacknowledged = 0;
  }

  void OnAck(const Frame& frame, Picoseconds now) {
    Sender& sender = senders_[frame.flow];
    if (frame.acknowledged <= sender.acknowledged) return;
    int64_t packets = frame.acknowledged - sender.acknowledged;
    sender.acknowledged = frame.acknowledged;
    sender.next = std::max(sender.next, sender.acknowledged);
    sender.progress = now;
    if (sender.congestion) {
      sender.congestion->OnAck({now, now - frame.sent, packets * context_.full_size,
                                InFlight(sender), (frame.flags & kMarked) != 0});
    }
    if (sender.acknowledged == sender.packets) {
      context_.progress->Acknowledged(frame.flow, now);
      sender.congestion.reset();
    } else {
      Activate(frame.flow, sender.is_active);
    }
  }

  void GoBack(FlowId flow, Picoseconds now) {
    Sender& sender = senders_[flow];
    if (sender.next == sender.acknowledged) return;
    int64_t lost = InFlight(sender);
    sender.next = sender.acknowledged;
    sender.progress = now;
    if (sender.congestion) sender.congestion->OnLoss(now, lost, 0);
    Activate(flow, sender.is_active);
  }

  std::vector<Sender>& senders_;
  std::vector<Receiver>& receivers_;
};

}  // namespace

std::unique_ptr<Protocol> GoBackNTransports::Make(NicId nic) {
  return std::make_unique<GoBackN>(context_, nic, senders_, receivers_);
}

}  // namespace weft::topology::packet
