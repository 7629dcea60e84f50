// What a sender makes of what it hears, and of hearing nothing.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "net/multipath/sender.h"

namespace weft::net::multipath {
namespace {
constexpr int kBackoffMost = 16;
}  // namespace

absl::Duration Sender::Timeout() const {
  const RttEstimator& rtt = flight_.rtt();
  absl::Duration base = rtt.smoothed() + 4 * rtt.variation() + options_.held_max;
  base = std::max(base, options_.timeout_min);
  return std::min(base * (1 << std::min(backoff_, kBackoffMost)), options_.timeout_max);
}

void Sender::Receive(const Packet& packet, absl::Time now, absl::Time at) {
  if (state_ == ConnectionState::kBroken || state_ == ConnectionState::kClosed) return;
  if (packet.target != incarnation_) return;  // meant for an earlier life
  arrived_at_ = at;
  switch (packet.type) {
    case PacketType::kWelcome:
      return OnWelcome(packet, now);
    case PacketType::kAck:
      return OnAck(packet, now);
    case PacketType::kReset:
      return OnReset(packet, now);
    case PacketType::kFinished:
      if (packet.source == peer_ && is_closing_ && outstanding() == 0) {
        state_ = ConnectionState::kClosed;
      }
      return;
    default:
      return;  // not for a sender
  }
}

void Sender::OnWelcome(const Packet& packet, absl::Time now) {
  if (state_ != ConnectionState::kConnecting) return;
  state_ = ConnectionState::kOpen;
  peer_ = packet.source;
  message_window_ = packet.window;
  backoff_ = timeouts_ = idle_probes_ = 0;
  greet_at_ = absl::InfinitePast();
  heard_at_ = progress_at_ = now;
  Credit(packet);
}

// True if it is more than before.
bool Sender::Credit(const Packet& packet) {
  const bool is_more = packet.messages > messages_allowed_ || packet.credit > credit_;
  if (is_more) idle_probes_ = 0;
  messages_allowed_ = std::max(messages_allowed_, packet.messages);
  credit_ = std::max(credit_, packet.credit);
  return is_more;
}

void Sender::OnAck(const Packet& packet, absl::Time now) {
  if (state_ != ConnectionState::kOpen || packet.source != peer_) return;
  if (packet.base > flight_.next()) return;  // of numbers that were never sent
  heard_ = static_cast<uint16_t>(packet.path + 1);
  controller_->Advance(now);
  // One that was repeated says nothing new, and is no sign of life.
  bool is_news = Credit(packet);
  for (const Echo& echo : packet.echoes) is_news |= OnEcho(echo, now);
  auto arrived = [&](uint64_t number) {
    if (Sent* sent = flight_.Find(number)) {
      is_news = true;
      OnArrived(*sent, absl::ZeroDuration(), absl::ZeroDuration(), false, now);
    }
  };
  while (flight_.floor() < packet.base) {
    uint64_t floor = flight_.floor();
    arrived(floor);
    if (flight_.floor() == floor) break;
  }
  for (size_t w = 0; w < packet.arrived.size(); ++w) {
    for (uint64_t bits = packet.arrived[w]; bits != 0; bits &= bits - 1) {
      arrived(packet.base + 64 * w + static_cast<uint64_t>(__builtin_ctzll(bits)));
    }
  }
  if (is_news) heard_at_ = now;
  DetectLosses(now);
}

// True if it says what was not known.
bool Sender::OnEcho(const Echo& echo, absl::Time now) {
  Sent* sent = flight_.Find(echo.number);
  if (sent == nullptr) return false;
  if ((echo.flags & Echo::kTrimmed) != 0) {
    if (sent->state != SentState::kInFlight) return false;
    paths_.OnAck(sent->path, absl::ZeroDuration());
    flight_.Lose(*sent);
    OnLost(*sent, PathLoss::kTrimmed, now);
    return true;
  }
  if ((echo.flags & Echo::kRefused) != 0 && sent->message >= message_floor_) {
    Message& message = At(sent->message);
    if (!sent->is_probe && !message.is_done) {
      for (; message.next < message.chunks; ++message.next) {
        unsent_bytes_ -= SizeOf(message, message.next);
      }
      Complete(message, absl::OutOfRangeError(absl::StrCat("message of ", message.size,
                                                           " bytes is longer than what ",
                                                           options_.peer, " posted for it")));
    }
  }
  absl::Duration held = absl::Nanoseconds(echo.held_ns);
  absl::Duration rtt = arrived_at_ - sent->at - held;
  OnArrived(*sent, std::max(rtt, absl::Nanoseconds(1)), held, (echo.flags & Echo::kMarked) != 0,
            now);
  return true;
}

void Sender::OnArrived(Sent& sent, absl::Duration rtt, absl::Duration held, bool marked,
                       absl::Time now) {
  if (sent.state == SentState::kLost) ++statistics_.spurious;
  if (marked) ++statistics_.marks;
  bool was_in_flight = sent.state == SentState::kInFlight;
  if (was_in_flight) paths_.OnResolved(sent.path, sent.bytes);
  if (paths_.OnAck(sent.path, rtt)) ++statistics_.paths_back;
  tallies_[sent.path].bytes += sent.bytes;
  // A slow path's delays say nothing of those that carry the rest.
  bool is_usual = !paths_.IsSlow(sent.path);
  flight_.Arrived(sent, rtt, is_usual);
  if (is_usual) MeasureBaseRtt(sent, rtt, now);
  progress_at_ = now;
  backoff_ = timeouts_ = 0;
  probes_tail_ = false;
  probes_due_ = 0;
  chooser_.policy().OnAck(
      {.now = now, .path = sent.path, .rtt = rtt, .marked = marked, .bytes = Bytes(sent.bytes)});
  if (sent.is_probe) return;
  if (was_in_flight) {
    controller_->OnAck({.now = now,
                        .rtt = is_usual ? rtt : absl::ZeroDuration(),
                        .endpoint = held,
                        .acked = Bytes(sent.bytes),
                        .in_flight = Bytes(flight_.bytes()),
                        .marked = marked && is_usual});
  }
  Chunk chunk{sent.message, sent.chunk};
  if (!IsWanted(chunk)) return;
  Message& message = At(chunk.message);
  message.bits[chunk.index / 64] |= uint64_t{1} << (chunk.index % 64);
  if (++message.arrived == message.chunks) Complete(message, absl::OkStatus());
}

// What is shorter than a packet is as much sooner there.
void Sender::MeasureBaseRtt(const Sent& sent, absl::Duration rtt, absl::Time now) {
  if (!options_.measures_base_rtt || rtt <= absl::ZeroDuration()) return;
  const PathFacts& facts = options_.facts;
  const Bytes missing = facts.packet - Bytes(std::min<int64_t>(sent.bytes, facts.packet.count()));
  if (!base_rtt_.Add(now, rtt + missing / facts.bandwidth, sent.is_alone)) return;
  controller_->SetBaseRtt(base_rtt_.value());
}

// Called by flight_ for each, and for a trimmed one.
void Sender::OnLost(const Sent& sent, PathLoss loss, absl::Time now) {
  paths_.OnResolved(sent.path, sent.bytes);
  chooser_.policy().OnLoss(sent.path, loss, now);
  if (loss == PathLoss::kTimeout && paths_.Leave(sent.path, now)) ++statistics_.paths_left;
  if (sent.is_probe) return;
  // What went down with its path, or on a slow one, says nothing of the queues on the others.
  bool is_one_path = (!paths_.IsLive(sent.path) && paths_.live() > 0) || paths_.IsSlow(sent.path);
  bool is_congestion = !options_.weighs_paths || !is_one_path;
  if (!is_congestion) {
    // Only sent again.
  } else if (loss == PathLoss::kTrimmed) {
    controller_->OnLoss(now, Bytes(sent.bytes), Bytes(flight_.bytes()));
  } else {
    lost_now_ += sent.bytes;
  }
  Chunk chunk{sent.message, sent.chunk};
  if (!IsWanted(chunk)) return;
  Message& message = At(chunk.message);
  uint64_t& queued = message.queued[chunk.index / 64];
  uint64_t bit = uint64_t{1} << (chunk.index % 64);
  if ((queued & bit) != 0) return;
  queued |= bit;
  ++tallies_[sent.path].lost;
  lost_.push_back(chunk);
  lost_bytes_ += SizeOf(message, chunk.index);
}

void Sender::DetectLosses(absl::Time now) {
  auto on_lost = [&](const Sent& sent, PathLoss loss) { OnLost(sent, loss, now); };
  lost_now_ = 0;
  flight_.DetectLosses(now, on_lost);
  if (lost_now_ > 0) controller_->OnLoss(now, Bytes(lost_now_), Bytes(flight_.bytes()));
  if (flight_.empty()) return;
  if (now < std::max(progress_at_, flight_.oldest_at()) + Timeout()) return;
  // Nothing was heard for a probe timeout.
  progress_at_ = now;
  backoff_ = std::min(backoff_ + 1, kBackoffMost);
  if (options_.probes_all) probes_due_ = paths_.count();
  if (backoff_ == 1 && flight_.bytes() > 0) {
    probes_tail_ = true;
    return;
  }
  bool had_data = flight_.bytes() > 0;
  lost_now_ = 0;
  flight_.LoseAll(on_lost);
  if (!had_data) return;
  ++statistics_.timeouts;
  controller_->OnTimeout(now, ++timeouts_);
}

void Sender::OnSilence(absl::Time now) {
  bool is_wanted = outstanding() > 0 || is_closing_;
  if (!is_wanted) {
    wanted_since_ = now;
    return;
  }
  if (state_ != ConnectionState::kConnecting && state_ != ConnectionState::kOpen) return;
  if (now < std::max(heard_at_, wanted_since_) + options_.give_up) return;
  Break(absl::UnavailableError(absl::StrCat(
      "nothing was heard of ", options_.peer, " for ", absl::FormatDuration(options_.give_up),
      ", on ", paths_.count(), " paths: it is dead, or no path leads there")));
}

void Sender::OnReset(const Packet& packet, absl::Time now) {
  // One that answers an older connection of this very life says nothing of the present one.
  if (packet.echo != peer_) return;
  heard_at_ = now;
  if (packet.reason == ResetReason::kClosed) {
    if (is_closing_ && outstanding() == 0) {
      state_ = ConnectionState::kClosed;
      return;
    }
    return Break(absl::UnavailableError(absl::StrCat(options_.peer, " has closed the connection")));
  }
  if (state_ != ConnectionState::kOpen) return;
  FailAll(WithFailure(absl::UnavailableError(absl::StrCat(options_.peer, " has restarted")),
                      {.scope = FailureScope::kProcess}));
  if (is_closing_) {
    state_ = ConnectionState::kClosed;
    return;
  }
  Connect(now);
}

// From the beginning, as a new incarnation.
void Sender::Connect(absl::Time now) {
  state_ = ConnectionState::kConnecting;
  ++incarnation_;
  peer_ = heard_ = 0;
  flight_ = Flight(options_.paths.paths, options_.numbers, options_.facts.base_rtt,
                   options_.held_max, options_.weighs_paths);
  paths_ = PathSet(options_.paths);
  controller_ = MakeController(options_.controller, options_.facts);
  base_rtt_ = BaseRtt(options_.facts.base_rtt);
  message_floor_ = message_next_ = message_cursor_ = 0;
  messages_allowed_ = credit_ = sent_bytes_ = unsent_bytes_ = lost_bytes_ = 0;
  lost_.clear();
  urgent_.clear();
  backoff_ = timeouts_ = idle_probes_ = 0;
  probes_tail_ = false;
  probes_due_ = 0;
  progress_at_ = now;
  greet_at_ = absl::InfinitePast();
}

void Sender::Complete(Message& message, absl::Status status) {
  message.is_done = true;
  completions_.push_back({message.cookie, message.size, std::move(status)});
  while (message_floor_ < message_next_ && At(message_floor_).is_done) ++message_floor_;
}

void Sender::FailAll(const absl::Status& status) {
  for (uint64_t i = message_floor_; i < message_next_; ++i) {
    Message& message = At(i);
    if (message.is_done) continue;
    message.is_done = true;
    completions_.push_back({message.cookie, message.size, status});
  }
  message_floor_ = message_next_;
  unsent_bytes_ = lost_bytes_ = 0;
  lost_.clear();
  urgent_.clear();
}

void Sender::CancelIf(absl::FunctionRef<bool(uint64_t cookie)> which) {
  for (uint64_t i = message_floor_; i < message_next_; ++i) {
    Message& message = At(i);
    if (message.is_done || !which(message.cookie)) continue;
    for (; message.next < message.chunks; ++message.next) {
      unsent_bytes_ -= SizeOf(message, message.next);
    }
    message.is_done = true;
  }
  while (message_floor_ < message_next_ && At(message_floor_).is_done) ++message_floor_;
}

void Sender::Break(absl::Status status) {
  state_ = ConnectionState::kBroken;
  status_ = std::move(status);
  FailAll(status_);
}

}  // namespace weft::net::multipath
