#include "net/multipath/receiver.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "base/status.h"

namespace weft::net::multipath {

Receiver::Receiver(const ReceiverOptions& options, absl::Time now)
    : options_(options),
      posted_(options.messages),
      credit_(options.grants_credit ? options.credit : kUnlimited),
      heard_at_(now) {
  WEFT_CHECK(options.incarnation != 0, "incarnation=0");
  WEFT_CHECK(options.messages >= 1 && options.messages <= kMessagesMax,
             "messages=" << options.messages);
  WEFT_CHECK(options.ack_every >= 1 && options.ack_every <= static_cast<int>(kEchoesMax),
             "ack_every=" << options.ack_every);
}

bool Receiver::Post(uint64_t cookie, std::byte* buffer, uint64_t capacity) {
  if (state_ == ConnectionState::kBroken || state_ == ConnectionState::kClosed) {
    completions_.push_back({cookie, 0, status_});
    return true;
  }
  if (posted_next_ - done_floor_ >= posted_.size()) return false;
  Posted& posted = At(posted_next_++);
  posted.cookie = cookie;
  posted.buffer = buffer;
  posted.capacity = capacity;
  posted.length = 0;
  posted.arrived = posted.chunks = 0;
  posted.is_begun = posted.is_done = false;
  if (state_ == ConnectionState::kOpen) acks_now_ = true;
  return true;
}

void Receiver::Grant(uint64_t credit) {
  if (!options_.grants_credit || credit <= credit_) return;
  credit_ = credit;
  if (state_ == ConnectionState::kOpen) acks_now_ = true;
}

void Receiver::Answer(const Packet& packet, ResetReason reason) {
  Packet& reset = reset_.emplace();
  reset.type = PacketType::kReset;
  reset.path = packet.path;
  reset.source = options_.incarnation;
  reset.target = packet.source;
  reset.echo = packet.target;
  reset.reason = reason;
}

void Receiver::Receive(const Arrival& arrival, absl::Time now) {
  const Packet& packet = arrival.packet;
  bool is_over = state_ == ConnectionState::kClosed || state_ == ConnectionState::kBroken;
  switch (packet.type) {
    case PacketType::kHello:
      if (!is_over) return OnHello(packet, now);
      return Answer(packet, ResetReason::kClosed);
    case PacketType::kData:
    case PacketType::kProbe:
    case PacketType::kFinish:
      break;
    default:
      return;  // not for a receiver
  }
  if (packet.target != options_.incarnation) return Answer(packet, ResetReason::kUnknown);
  if (packet.source != peer_) {
    if (packet.source > peer_) Answer(packet, ResetReason::kUnknown);
    return;
  }
  if (packet.type == PacketType::kFinish) {
    path_ = packet.path;
    return OnFinish(packet);
  }
  if (is_over) return Answer(packet, ResetReason::kClosed);
  if (IsNew(packet.number)) {
    path_ = packet.path;
    heard_at_ = now;
    NoteWay(packet.heard);
  }
  demand_ = std::max(demand_, packet.demand);
  OnData(arrival, std::min(now, arrival.at));
}

void Receiver::OnHello(const Packet& packet, absl::Time now) {
  if (packet.source < peer_) return;  // of an earlier life
  path_ = packet.path;
  welcomes_ = true;
  if (packet.source == peer_) return;
  heard_at_ = now;
  if (peer_ != 0) {
    FailAll(WithFailure(absl::UnavailableError(absl::StrCat(options_.peer, " has restarted")),
                        {.scope = FailureScope::kProcess}));
  }
  peer_ = packet.source;
  chunk_ = packet.chunk;
  state_ = ConnectionState::kOpen;
  arrived_.assign(std::bit_ceil(std::max(packet.window, 64u)) / 64, 0);
  base_ = 1;
  highest_ = 0;
  refused_.clear();
  ways_known_ = ways_next_ = 0;
  heard_ = 0;
  echoes_.clear();
  probed_.clear();
  acks_now_ = false;
  ack_at_ = absl::InfiniteFuture();
  demand_ = 0;
  credit_ = options_.grants_credit ? options_.credit : kUnlimited;
}

bool Receiver::IsNew(uint64_t number) {
  if (number < base_) return false;
  return number > highest_ ||
         (arrived_[number % (arrived_.size() * 64) / 64] >> (number % 64) & 1) == 0;
}

void Receiver::Note(uint64_t number, uint64_t floor) {
  uint64_t window = arrived_.size() * 64;
  auto word = [&](uint64_t n) -> uint64_t& { return arrived_[n % window / 64]; };
  auto bit = [](uint64_t n) { return uint64_t{1} << (n % 64); };
  if (number >= base_) {
    // `floor` first: what lies below it makes room for the number.
    if (floor > base_ + window) {
      std::fill(arrived_.begin(), arrived_.end(), 0);
      base_ = floor;
    }
    for (; base_ < floor; ++base_) word(base_) &= ~bit(base_);
    if (number >= base_) word(number) |= bit(number);
    highest_ = std::max(highest_, number);
  }
  for (; base_ <= highest_ && (word(base_) & bit(base_)) != 0; ++base_) word(base_) &= ~bit(base_);
}

void Receiver::Echoes(uint64_t number, uint8_t flags, absl::Time now) {
  if (echoes_.size() == kEchoesMax) echoes_.erase(echoes_.begin());
  echoes_.push_back({{number, 0, flags}, now});
  if (static_cast<int>(echoes_.size()) >= options_.ack_every || flags != 0) acks_now_ = true;
  if (echoes_.size() == 1) ack_at_ = now + options_.ack_delay;
}

void Receiver::OnData(const Arrival& arrival, absl::Time at) {
  const Packet& packet = arrival.packet;
  uint64_t window = arrived_.size() * 64;
  if (packet.number >= std::max(base_, packet.floor) + window) return;
  uint8_t flags = arrival.marked ? Echo::kMarked : 0;
  Verdict verdict = Verdict::kTaken;
  if (packet.type == PacketType::kData) {
    verdict = arrival.trimmed ? Verdict::kIgnored : Take(arrival);
    if (arrival.trimmed) return Echoes(packet.number, flags | Echo::kTrimmed, at);
  }
  if (verdict == Verdict::kIgnored) return;
  if (verdict == Verdict::kRefused) return Echoes(packet.number, flags | Echo::kRefused, at);
  Note(packet.number, packet.floor);
  Echoes(packet.number, flags, at);
  if (packet.type != PacketType::kProbe) return;
  acks_now_ = true;
  if (options_.recycles_ways && probed_.size() < kProbedMax) probed_.push_back(packet.path);
}

Receiver::Verdict Receiver::Take(const Arrival& arrival) {
  const Packet& packet = arrival.packet;
  if (options_.sink != nullptr) return TakeAddressed(arrival);
  if (packet.message >= posted_next_) return Verdict::kIgnored;  // beyond its credit
  // A sender has at most so many messages outstanding, so that it asks no more of older ones.
  while (!refused_.empty() && *refused_.begin() + posted_.size() <= packet.message) {
    refused_.erase(refused_.begin());
  }
  if (refused_.contains(packet.message)) return Verdict::kRefused;
  if (packet.message < done_floor_) return Verdict::kTaken;
  Posted& posted = At(packet.message);
  if (posted.is_done) return Verdict::kTaken;
  if (packet.length > posted.capacity) {
    refused_.insert(packet.message);
    posted.length = packet.length;
    Complete(posted, absl::OutOfRangeError(
                         absl::StrCat("message of ", packet.length, " bytes from ", options_.peer,
                                      " is longer than the ", posted.capacity, " posted for it")));
    return Verdict::kRefused;
  }
  return TakeChunk(arrival, posted);
}

Receiver::Verdict Receiver::TakeAddressed(const Arrival& arrival) {
  const Packet& packet = arrival.packet;
  if (packet.message >= done_floor_ + posted_.size()) return Verdict::kIgnored;
  for (; posted_next_ <= packet.message; ++posted_next_) {
    Posted& posted = At(posted_next_);
    posted.cookie = posted_next_;
    posted.arrived = posted.chunks = 0;
    posted.is_begun = posted.is_done = false;
  }
  if (packet.message < done_floor_) return Verdict::kTaken;
  Posted& posted = At(packet.message);
  if (posted.is_done) return Verdict::kTaken;
  if (!posted.is_begun && !options_.sink->OnMessage(packet)) return Verdict::kIgnored;
  return TakeChunk(arrival, posted);
}

Receiver::Verdict Receiver::TakeChunk(const Arrival& arrival, Posted& posted) {
  const Packet& packet = arrival.packet;
  if (!posted.is_begun) {
    posted.is_begun = true;
    posted.length = packet.length;
    uint64_t chunks = std::max<uint64_t>(1, (packet.length + chunk_ - 1) / chunk_);
    posted.chunks = static_cast<uint32_t>(chunks);
    posted.bits.assign((chunks + 63) / 64, 0);
  }
  // What does not fit the rest of the message is of no sender of ours.
  if (packet.length != posted.length || packet.offset % chunk_ != 0) return Verdict::kIgnored;
  uint64_t expected = std::min<uint64_t>(chunk_, packet.length - packet.offset);
  uint64_t index = packet.offset / chunk_;
  if (arrival.chunk_bytes != expected || index >= posted.chunks) return Verdict::kIgnored;
  uint64_t bit = uint64_t{1} << (index % 64);
  if ((posted.bits[index / 64] & bit) != 0) return Verdict::kTaken;
  posted.bits[index / 64] |= bit;
  if (options_.sink != nullptr) {
    options_.sink->OnChunk(packet, arrival.chunk, arrival.chunk_bytes);
  } else if (arrival.chunk != nullptr && expected > 0) {
    std::memcpy(posted.buffer + packet.offset, arrival.chunk, expected);
  }
  if (++posted.arrived == posted.chunks) Complete(posted, absl::OkStatus());
  return Verdict::kTaken;
}

bool Receiver::IsMissing(uint64_t message, uint64_t offset, uint64_t bytes) {
  if (message < done_floor_ || message >= posted_next_) return false;
  const Posted& posted = At(message);
  if (posted.is_done || !posted.is_begun || offset >= posted.length || offset % chunk_ != 0) {
    return false;
  }
  uint64_t index = offset / chunk_;
  return bytes == std::min<uint64_t>(chunk_, posted.length - offset) &&
         (posted.bits[index / 64] >> (index % 64) & 1) == 0;
}

void Receiver::Complete(Posted& posted, absl::Status status) {
  posted.is_done = true;
  completions_.push_back({posted.cookie, posted.length, std::move(status)});
  while (done_floor_ < posted_next_ && At(done_floor_).is_done) ++done_floor_;
}

// And begins to count anew: the next Post() is for message 0 of whoever comes.
void Receiver::FailAll(const absl::Status& status) {
  for (uint64_t i = done_floor_; i < posted_next_; ++i) {
    Posted& posted = At(i);
    if (posted.is_done) continue;
    posted.is_done = true;
    completions_.push_back({posted.cookie, 0, status});
  }
  done_floor_ = posted_next_ = 0;
}

void Receiver::OnFinish(const Packet& packet) {
  if (state_ == ConnectionState::kOpen) {
    if (packet.total > done_floor_) return;  // cannot be: it waits for our acknowledgements
    state_ = ConnectionState::kClosed;
    status_ = absl::CancelledError(absl::StrCat(options_.peer, " has closed the connection"));
    FailAll(status_);
  }
  finishes_ = true;
}

void Receiver::Close() {
  if (state_ == ConnectionState::kClosed || state_ == ConnectionState::kBroken) return;
  state_ = ConnectionState::kClosed;
  status_ = absl::CancelledError("the connection was closed here");
  FailAll(status_);
}

void Receiver::NoteWay(uint16_t heard) {
  if (heard == 0 || heard == heard_) return;
  heard_ = heard;
  ways_[ways_next_] = static_cast<PathId>(heard - 1);
  ways_next_ = (ways_next_ + 1) % ways_.size();
  ways_known_ = std::min(ways_known_ + 1, ways_.size());
}

PathId Receiver::WayBack() {
  bool explores = ++answers_ % 4 == 0;
  if (!options_.recycles_ways || ways_known_ == 0 || explores) return path_;
  return ways_[answers_ % ways_known_];
}

void Receiver::FillAck(absl::Time now, Packet& packet) {
  packet.type = PacketType::kAck;
  if (echoes_.empty() && !probed_.empty()) {
    packet.path = probed_.back();
    probed_.pop_back();
  } else {
    packet.path = WayBack();
    std::erase(probed_, packet.path);
  }
  packet.base = base_;
  packet.echoes.clear();
  for (Held& held : echoes_) {
    absl::Duration time = std::min(now - held.at, absl::Milliseconds(500));
    held.echo.held_ns = static_cast<uint32_t>(absl::ToInt64Nanoseconds(time));
    packet.echoes.push_back(held.echo);
  }
  echoes_.clear();
  ack_at_ = absl::InfiniteFuture();
  acks_now_ = !probed_.empty();
  packet.arrived.clear();
  const uint64_t words = WordsArrived();
  for (uint64_t w = 0; w < words; ++w) {
    uint64_t at = (base_ + 64 * w) % (arrived_.size() * 64), shift = at % 64;
    uint64_t bits = arrived_[at / 64] >> shift;
    if (shift != 0) bits |= arrived_[(at / 64 + 1) % arrived_.size()] << (64 - shift);
    // Beyond the window the ring begins again.
    if (w + 1 == words) {
      uint64_t valid = highest_ - base_ - 64 * w + 1;
      if (valid < 64) bits &= (uint64_t{1} << valid) - 1;
    }
    packet.arrived.push_back(bits);
  }
}

uint64_t Receiver::WordsArrived() const {
  return highest_ < base_ ? 0 : std::min<uint64_t>((highest_ - base_) / 64 + 1, kWordsMax);
}

size_t Receiver::AckBytes() const {
  return kAckBytes + (echoes_.size() + WordsArrived()) * sizeof(uint64_t);
}

bool Receiver::TakeAck(absl::Time now, Packet& packet) {
  if (state_ != ConnectionState::kOpen || echoes_.empty()) return false;
  FillCommon(packet);
  FillAck(now, packet);
  return true;
}

void Receiver::FillCommon(Packet& packet) const {
  packet.path = path_;
  packet.source = options_.incarnation;
  packet.target = peer_;
  packet.messages = options_.sink != nullptr ? kUnlimited : posted_next_;
  packet.credit = credit_;
}

bool Receiver::Next(absl::Time now, Packet& packet) {
  if (reset_) {
    packet = std::move(*reset_);
    reset_.reset();
    return true;
  }
  if (state_ == ConnectionState::kOpen && now >= heard_at_ + options_.give_up) {
    state_ = ConnectionState::kBroken;
    status_ = absl::UnavailableError(absl::StrCat("nothing was heard of ", options_.peer, " for ",
                                                  absl::FormatDuration(options_.give_up)));
    FailAll(status_);
  }
  FillCommon(packet);
  if (std::exchange(finishes_, false)) {
    packet.type = PacketType::kFinished;
    return true;
  }
  deadline_ = absl::InfiniteFuture();
  if (state_ != ConnectionState::kOpen) return false;
  if (std::exchange(welcomes_, false)) {
    packet.type = PacketType::kWelcome;
    packet.window = options_.messages;
    return true;
  }
  if (acks_now_ || ack_at_ <= now) {
    FillAck(now, packet);
    return true;
  }
  deadline_ = std::min(ack_at_, heard_at_ + options_.give_up);
  return false;
}

bool Receiver::TakeCompletion(Completion& completion) {
  if (completions_.empty()) return false;
  completion = std::move(completions_.front());
  completions_.pop_front();
  return true;
}

}  // namespace weft::net::multipath
