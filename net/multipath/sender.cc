#include "net/multipath/sender.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"

namespace weft::net::multipath {
namespace {

constexpr int kBackoffMost = 16;

bool GetBit(const std::vector<uint64_t>& bits, uint32_t i) {
  return (bits[i / 64] >> (i % 64) & 1) != 0;
}

PolicyOptions PolicyFor(const SenderOptions& options, uint64_t seed) {
  PolicyOptions policy = options.policy;
  policy.seed ^= seed;
  policy.base_rtt = options.facts.base_rtt;
  policy.packet = options.facts.packet;
  if (policy.window <= Bytes(0)) policy.window = options.facts.product();
  return policy;
}

}  // namespace

Sender::Sender(const SenderOptions& options, absl::Time now)
    : options_(options),
      incarnation_(options.incarnation),
      seed_(options.incarnation),
      base_rtt_(options.facts.base_rtt),
      pacer_(options.burst),
      paths_(options.paths),
      tallies_(static_cast<size_t>(options.paths.paths)),
      chooser_(MakePolicy(PolicyFor(options, seed_), options.paths.paths), options.piece),
      flight_(options.paths.paths, options.numbers, options.facts.base_rtt, options.held_max,
              options.weighs_paths),
      messages_(options.messages),
      progress_at_(now),
      heard_at_(now),
      sent_at_(now),
      wanted_since_(now) {
  WEFT_CHECK(options.incarnation != 0, "incarnation=0");
  WEFT_CHECK(options.chunk >= kChunkMin && options.chunk <= kChunkMax, "chunk=" << options.chunk);
  WEFT_CHECK(options.numbers >= 64 && options.numbers <= kNumbersMax,
             "numbers=" << options.numbers);
  WEFT_CHECK(options.messages >= 1 && options.messages <= kMessagesMax,
             "messages=" << options.messages);
  controller_ = MakeController(options.controller, options.facts);
}

void Sender::FollowPlan(std::vector<PathId> planned, std::vector<PathId> spare) {
  PolicyOptions policy = PolicyFor(options_, seed_);
  policy.kind = PolicyKind::kPlanned;
  policy.planned = std::move(planned);
  policy.spare = std::move(spare);
  chooser_.SetPolicy(MakePolicy(policy, options_.paths.paths));
}

uint32_t Sender::SizeOf(const Message& message, uint32_t chunk) const {
  uint64_t offset = uint64_t{chunk} * options_.chunk;
  return static_cast<uint32_t>(std::min<uint64_t>(options_.chunk, message.size - offset));
}

bool Sender::Send(uint64_t cookie, const std::byte* data, uint64_t size, Label label) {
  if (state_ == ConnectionState::kBroken || state_ == ConnectionState::kClosed || is_closing_) {
    absl::Status status = state_ == ConnectionState::kBroken
                              ? status_
                              : absl::FailedPreconditionError("the connection is closed");
    completions_.push_back({cookie, size, std::move(status)});
    return true;
  }
  if (size > kMessageBytesMax) {
    completions_.push_back({cookie, size, absl::InvalidArgumentError("message above 1 TiB")});
    return true;
  }
  if (message_next_ - message_floor_ >= messages_.size()) return false;
  if (label.control != 0) urgent_.push_back(message_next_);
  Message& message = At(message_next_++);
  message.cookie = cookie;
  message.data = data;
  message.size = size;
  message.label = label;
  uint64_t chunks = std::max<uint64_t>(1, (size + options_.chunk - 1) / options_.chunk);
  message.chunks = static_cast<uint32_t>(chunks);
  message.next = message.arrived = 0;
  message.is_done = false;
  message.bits.assign((chunks + 63) / 64, 0);
  message.queued.assign((chunks + 63) / 64, 0);
  unsent_bytes_ += size;
  return true;
}

bool Sender::IsWanted(const Chunk& chunk) {
  if (chunk.message < message_floor_) return false;
  const Message& message = At(chunk.message);
  return !message.is_done && !GetBit(message.bits, chunk.index);
}

bool Sender::PickLost(Chunk& chunk) {
  while (!lost_.empty()) {
    chunk = lost_.front();
    if (IsWanted(chunk)) return true;
    lost_.pop_front();
  }
  lost_bytes_ = 0;  // what was left of it was of chunks that nobody wants
  return false;
}

bool Sender::PickNew(Chunk& chunk) {
  uint64_t end = std::min({message_next_, messages_allowed_, message_floor_ + message_window_});
  for (; !urgent_.empty(); urgent_.pop_front()) {
    uint64_t first = urgent_.front();
    if (first >= end) break;
    if (first < message_floor_) continue;
    const Message& message = At(first);
    if (message.is_done || message.next == message.chunks) continue;
    chunk = {first, message.next};
    return true;
  }
  message_cursor_ = std::max(message_cursor_, message_floor_);
  while (message_cursor_ < message_next_) {
    const Message& message = At(message_cursor_);
    if (!message.is_done && message.next < message.chunks) break;
    ++message_cursor_;
  }
  if (message_cursor_ >= end) return false;
  chunk = {message_cursor_, At(message_cursor_).next};
  return true;
}

// Whether window, credit and room for a number let it go; the pacer is asked apart.
bool Sender::MaySend(uint32_t bytes) {
  if (flight_.full() || sent_bytes_ + bytes > credit_) return false;
  int64_t wire = int64_t{bytes} + options_.overhead;
  int64_t window = controller_->window().count();
  if (options_.window_max > Bytes(0)) window = std::min(window, options_.window_max.count());
  // What is stuck on slow paths is not waited for.
  int64_t in_flight = flight_.bytes() - paths_.slow_bytes();
  return in_flight <= 0 || in_flight + wire <= window;
}

// The controller's, and at least a packet each timeout_max. Zero: unpaced.
Bandwidth Sender::Pace() const {
  Bandwidth rate = controller_->rate();
  return rate <= Bandwidth() ? rate : std::max(rate, options_.facts.packet / options_.timeout_max);
}

Packet Sender::Header(PacketType type) const {
  Packet packet;
  packet.type = type;
  packet.source = incarnation_;
  packet.target = peer_;
  packet.heard = heard_;
  packet.floor = flight_.floor();
  packet.demand = Demand();
  return packet;
}

void Sender::Fill(const Chunk& chunk, absl::Time now, bool again, Outgoing& out) {
  Message& message = At(chunk.message);
  uint32_t bytes = SizeOf(message, chunk.index);
  uint32_t wire = bytes + options_.overhead;
  PathId path = chooser_.Choose(paths_, Bytes(wire), now);
  if (again) {
    ++statistics_.retransmissions;
  } else {
    ++message.next;
    unsent_bytes_ -= bytes;
  }
  sent_bytes_ += bytes;
  out.packet = Header(PacketType::kData);
  out.packet.number = flight_.Add(
      {.at = now, .message = chunk.message, .chunk = chunk.index, .bytes = wire, .path = path});
  out.packet.floor = std::min(flight_.floor(), out.packet.number);
  out.packet.path = path;
  out.packet.message = chunk.message;
  out.packet.offset = uint64_t{chunk.index} * options_.chunk;
  out.packet.length = message.size;
  out.packet.receive = message.label.receive;
  out.packet.control = message.label.control;
  out.chunk = message.data == nullptr ? nullptr : message.data + out.packet.offset;
  out.chunk_bytes = bytes;
  out.is_retransmission = again;
  paths_.OnSent(path, wire);
  if (flight_.bytes() == wire) progress_at_ = now;  // the probe timeout starts here
  controller_->OnSent(now, Bytes(wire));
  pacer_.OnSent(now, Bytes(wire), Pace());
  sent_at_ = now;
  ++statistics_.packets;
}

void Sender::FillProbe(PathId path, absl::Time now, Outgoing& out) {
  if (flight_.empty()) progress_at_ = now;
  out.packet = Header(PacketType::kProbe);
  out.packet.number = flight_.Add({.at = now, .path = path, .is_probe = true});
  paths_.OnSent(path, 0);
  out.packet.floor = std::min(flight_.floor(), out.packet.number);
  out.packet.path = path;
  out.chunk = nullptr;
  out.chunk_bytes = 0;
  sent_at_ = now;
}

bool Sender::NextData(absl::Time now, Outgoing& out) {
  Chunk chunk;
  bool again = PickLost(chunk);
  if (!again && !PickNew(chunk)) return false;
  uint32_t bytes = SizeOf(At(chunk.message), chunk.index);
  if (!pacer_.MaySend(now)) {
    pacer_.OnRate(now, options_.facts.packet, Pace());
    if (!pacer_.MaySend(now)) return false;
  }
  if (!MaySend(bytes)) return false;
  if (again) {
    lost_.pop_front();
    At(chunk.message).queued[chunk.index / 64] &= ~(uint64_t{1} << (chunk.index % 64));
    lost_bytes_ -= std::min<uint64_t>(lost_bytes_, bytes);
  }
  Fill(chunk, now, again, out);
  return true;
}

bool Sender::NextTailProbe(absl::Time now, Outgoing& out) {
  if (!probes_tail_) return false;
  probes_tail_ = false;
  Chunk chunk;
  if (flight_.full()) return false;
  if (PickNew(chunk) && sent_bytes_ + options_.chunk <= credit_) {
    Fill(chunk, now, false, out);
    ++statistics_.tail_probes;
    return true;
  }
  const Sent* newest = flight_.Newest();
  if (newest == nullptr) return false;
  chunk = {newest->message, newest->chunk};
  if (!IsWanted(chunk)) return false;
  Fill(chunk, now, true, out);
  ++statistics_.tail_probes;
  return true;
}

bool Sender::NextSilenceProbe(absl::Time now, Outgoing& out) {
  if (probes_due_ == 0 || flight_.full()) return false;
  --probes_due_;
  FillProbe(static_cast<PathId>(probe_next_++ % paths_.count()), now, out);
  return true;
}

// While nothing is in flight nothing would tell us of credits, nor the peer that we live.
bool Sender::NextIdleProbe(absl::Time now, Outgoing& out) {
  if (!flight_.empty() || !pacer_.MaySend(now)) return false;
  absl::Duration interval = options_.keepalive;
  if (outstanding() > 0) {
    interval = std::min(interval, Timeout() * (1 << std::min(idle_probes_, kBackoffMost)));
  }
  if (now < std::max(sent_at_, heard_at_) + interval) return false;
  ++idle_probes_;
  FillProbe(chooser_.Choose(paths_, Bytes(options_.overhead), now), now, out);
  return true;
}

bool Sender::NextHello(absl::Time now, Outgoing& out) {
  if (now < greet_at_) return false;
  out.packet = Header(PacketType::kHello);
  out.packet.path = static_cast<PathId>(backoff_ % paths_.count());
  out.packet.chunk = options_.chunk;
  out.packet.paths = static_cast<uint16_t>(paths_.count());
  out.packet.window = options_.numbers;
  out.chunk = nullptr;
  out.chunk_bytes = 0;
  greet_at_ = now + Timeout();
  backoff_ = std::min(backoff_ + 1, kBackoffMost);
  ++statistics_.handshakes;
  return true;
}

bool Sender::NextFinish(absl::Time now, Outgoing& out) {
  if (!is_closing_ || outstanding() > 0 || now < greet_at_) return false;
  out.packet = Header(PacketType::kFinish);
  out.packet.path = static_cast<PathId>(backoff_ % paths_.count());
  out.packet.total = message_next_;
  out.chunk = nullptr;
  out.chunk_bytes = 0;
  greet_at_ = now + Timeout();
  backoff_ = std::min(backoff_ + 1, kBackoffMost);
  return true;
}

bool Sender::Next(absl::Time now, Outgoing& out) {
  out.is_retransmission = false;
  deadline_ = absl::InfiniteFuture();
  OnSilence(now);
  if (state_ == ConnectionState::kConnecting) {
    if (is_closing_ && outstanding() == 0) {
      state_ = ConnectionState::kClosed;
      return false;
    }
    if (NextHello(now, out)) return true;
  } else if (state_ == ConnectionState::kOpen) {
    controller_->Advance(now);
    DetectLosses(now);
    if (NextTailProbe(now, out) || NextSilenceProbe(now, out)) return true;
    if (paths_.live() > 0 && !flight_.full()) {
      if (auto path = paths_.NextProbe(now)) {
        FillProbe(*path, now, out);
        return true;
      }
    }
    if (NextData(now, out) || NextFinish(now, out) || NextIdleProbe(now, out)) return true;
  }
  SetDeadline(now);
  return false;
}

void Sender::SetDeadline(absl::Time now) {
  if (state_ != ConnectionState::kConnecting && state_ != ConnectionState::kOpen) return;
  absl::Time due = absl::InfiniteFuture();
  bool is_wanted = outstanding() > 0 || is_closing_;
  if (is_wanted) due = std::max(heard_at_, wanted_since_) + options_.give_up;
  if (state_ == ConnectionState::kConnecting) {
    deadline_ = std::min(due, greet_at_);
    return;
  }
  due = std::min({due, flight_.deadline(), controller_->deadline()});
  if (paths_.live() > 0 && !flight_.full()) due = std::min(due, paths_.deadline());
  if (!flight_.empty()) {
    due = std::min(due, std::max(progress_at_, flight_.oldest_at()) + Timeout());
  } else if (pacer_.MaySend(now)) {
    absl::Duration interval = options_.keepalive;
    if (outstanding() > 0) {
      interval = std::min(interval, Timeout() * (1 << std::min(idle_probes_, kBackoffMost)));
    }
    due = std::min(due, std::max(sent_at_, heard_at_) + interval);
  }
  Chunk chunk;
  if (!pacer_.MaySend(now) && (PickLost(chunk) || PickNew(chunk))) {
    due = std::min(due, pacer_.next());
  }
  if (is_closing_ && outstanding() == 0) due = std::min(due, greet_at_);
  deadline_ = due;
}

bool Sender::TakeCompletion(Completion& completion) {
  if (completions_.empty()) return false;
  completion = std::move(completions_.front());
  completions_.pop_front();
  return true;
}

}  // namespace weft::net::multipath
