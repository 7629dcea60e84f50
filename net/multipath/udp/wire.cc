#include "net/multipath/udp/wire.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/multipath/udp/options.h"

namespace weft::net::multipath {
namespace {

constexpr uint64_t kControlCookie = 1ULL << 63;  // and the number; else a token of data
constexpr size_t kControlBytes = 4 << 10;        // none is begun beyond this
constexpr size_t kControlWaitingMax = 256;
constexpr absl::Duration kLinger = absl::Seconds(2);
constexpr uint32_t kControlReserve = 16;  // messages of the sender that data leaves free
constexpr int64_t kPiecesMin = 16;        // that a product of bandwidth and round trip holds
constexpr int kAcksMin = 8;               // a round trip, of what comes one by one
// So that other links, and what arrives, get their turns.
constexpr int kPacketsPerTurn = 128;
constexpr size_t kBytesPerTurn = 512 << 10;

// Rounds of the poller take long enough to be seen in delays, so that their time is not used.
absl::Time Now(const Clock* clock) {
  return clock != nullptr ? clock->Now() : absl::FromUnixNanos(SystemClock::Nanoseconds());
}

}  // namespace

Wire::Wire(Poller& poller, const OpenPaths& open, const WireOptions& options, bool is_connector,
           WireOwner& owner)
    : PollHandler(poller), options_(options), is_connector_(is_connector), owner_(&owner) {
  Nonce random = NewNonce();
  std::copy_n(random.begin(), nonce_.size(), nonce_.begin());
  // What unauthenticated peers send before the peer is known must not fit either.
  std::copy_n(random.begin() + nonce_.size(), receive_key_.size(), receive_key_.begin());
  paths_ = open(*this);
}

Wire::~Wire() { Close(); }

absl::StatusOr<std::string> Wire::OwnAddress() {
  Address address;
  address.nonce = nonce_;
  address.chunk_max = options_.chunk_max;
  address.chunk_is_set = options_.chunk_is_set;
  address.has_checksum = options_.has_checksum;
  address.trusts_host = options_.trusts_host;
  WEFT_RETURN_IF_ERROR(paths_->Describe(address));
  return address.Encode();
}

absl::Status Wire::Connect(absl::string_view peer_address) {
  if (is_closed_) return absl::OkStatus();
  if (facts_.paths > 0) {
    WantTurn();
    return paths_->OnRepair(peer_address);
  }
  WEFT_ASSIGN_OR_RETURN(Address peer, Address::Decode(peer_address));
  WEFT_ASSIGN_OR_RETURN(facts_, paths_->Connect(peer));
  Keys keys = is_connector_ ? MakeKeys(options_.secret, nonce_, peer.nonce)
                            : MakeKeys(options_.secret, peer.nonce, nonce_);
  send_key_ = is_connector_ ? keys.to_listener : keys.to_connector;
  receive_key_ = is_connector_ ? keys.to_connector : keys.to_listener;
  send_chunk_key_ = is_connector_ ? keys.chunks_to_listener : keys.chunks_to_connector;
  receive_chunk_key_ = is_connector_ ? keys.chunks_to_connector : keys.chunks_to_listener;
  peer_link_ = peer.link;
  Agree(peer);
  WantTurn();
  return absl::OkStatus();
}

// What both ends conclude alike from what they told each other.
void Wire::Agree(const Address& peer) {
  bool is_host = facts_.host_mtu > 0;
  options_.has_checksum = (options_.has_checksum && !(is_host && options_.trusts_host)) ||
                          (peer.has_checksum && !(is_host && peer.trusts_host));
  if (options_.authenticates) options_.has_checksum = false;  // check and tag cover as much
  SenderOptions& send = options_.sender;
  send.chunk = std::min(options_.chunk_max, peer.chunk_max);
  if (is_host) {
    uint32_t carried = ChunkFor(facts_.host_mtu, /*is_v6=*/true);
    send.chunk = std::min(options_.chunk_is_set ? options_.chunk_max : carried,
                          peer.chunk_is_set ? peer.chunk_max : carried);
    if (options_.host_bandwidth > Bandwidth()) send.facts.bandwidth = options_.host_bandwidth;
    // Delays within a host are those of threads that wait for a core, for tens of milliseconds on a
    // busy one: less than a packet a round trip would all but stop.
    PresetSwift(send.controller, "window_min", 1);
  }
  send.facts.packet = Bytes(int64_t{send.chunk} + send.overhead);
  // A window must hold many, or the paths share it badly.
  send.piece = std::min(options_.piece, Bytes(send.facts.product().count() / kPiecesMin));
  send.paths.paths = facts_.paths;
  if (!facts_.planned.empty()) {
    send.policy.kind = PolicyKind::kPlanned;
    send.policy.planned = facts_.planned;
    send.policy.spare = facts_.spare;
  }
  send.window_max = std::max(facts_.room, send.facts.packet);
}

void Wire::Open(absl::Time now) {
  SenderOptions& send = options_.sender;
  send.incarnation = static_cast<uint64_t>(absl::ToUnixNanos(now)) | 1;
  ReceiverOptions receive;
  receive.peer = send.peer;
  receive.incarnation = send.incarnation;
  receive.messages = send.messages;
  receive.recycles_ways = true;
  receive.ack_every = options_.ack_every;
  receive.sink = this;
  receive.give_up = absl::InfiniteDuration();
  sender_ = std::make_unique<Sender>(send, now);
  receiver_ = std::make_unique<Receiver>(receive, now);
  give_up_at_ = now + options_.connect_timeout;
  if (owner_ != nullptr) owner_->OnWireRoom();
}

absl::Time Wire::heard_at() const {
  if (!is_started()) return absl::InfinitePast();
  return std::max(sender_->heard_at(), receiver_->heard_at());
}

void Wire::AddTo(FlowCounters* counters) const {
  if (!is_started()) return;
  counters->repeats += static_cast<uint64_t>(sender_->statistics().retransmissions);
  for (int i = 0; i < facts_.paths; ++i) {
    counters->rtt_ns = std::max(
        counters->rtt_ns, absl::ToInt64Nanoseconds(sender_->paths().rtt(static_cast<PathId>(i))));
  }
}

std::vector<LaneReport> Wire::Lanes() const {
  std::vector<LaneReport> out;
  if (!is_started() || is_closed_) return out;
  for (int i = 0; i < facts_.paths; ++i) {
    const auto path = static_cast<PathId>(i);
    LaneReport lane;
    std::tie(lane.name, lane.source_port) = paths_->WayOf(path);
    lane.bytes = sender_->tally(path).bytes;
    lane.retransmissions = sender_->tally(path).lost;
    const absl::Duration rtt = sender_->paths().rtt(path);
    if (rtt > absl::ZeroDuration()) lane.rtt = rtt;
    out.push_back(std::move(lane));
  }
  return out;
}

// ---- Out

void Wire::SendData(const OutFrame& frame) {
  if (is_closed_) return;
  data_waiting_.push_back(frame);
  WantTurn();
}

bool Wire::HasRoom() const { return is_started() && control_waiting_.size() < kControlWaitingMax; }

void Wire::SendControl(OutFrame frame) {
  if (is_closed_) return;
  control_waiting_.push_back(std::move(frame));
  WantTurn();
}

// Several frames make one message.
void Wire::PostControl() {
  bool was_full = control_waiting_.size() >= kControlWaitingMax;
  while (!control_waiting_.empty() && sender_->outstanding() < options_.sender.messages) {
    uint64_t number = control_next_++;
    std::string& bytes = control_sent_[number];
    while (!control_waiting_.empty() && bytes.size() < kControlBytes) {
      OutFrame& frame = control_waiting_.front();
      if (frame.header.type != FrameType::kClearToSend) control_wanted_ = number;
      bytes.append(reinterpret_cast<const char*>(&frame.header), sizeof(frame.header));
      bytes.append(frame.owned);
      control_waiting_.pop_front();
    }
    sender_->Send(kControlCookie | number, reinterpret_cast<const std::byte*>(bytes.data()),
                  bytes.size(), {.receive = 0, .control = number});
  }
  if (was_full && owner_ != nullptr && HasRoom()) owner_->OnWireRoom();
}

void Wire::PostWaiting() {
  PostControl();
  while (!data_waiting_.empty() &&
         sender_->outstanding() + kControlReserve < options_.sender.messages) {
    const OutFrame& frame = data_waiting_.front();
    sender_->Send(frame.token, frame.payload, frame.header.total,
                  {.receive = frame.header.receive, .control = 0});
    data_waiting_.pop_front();
  }
}

void Wire::Write(Packet& packet, absl::Span<const std::byte> chunk) {
  packet.path = paths_->Carrier(packet.path);  // and so the answer's
  scratch_.assign(kEnvelopeBytes, '\0');
  WriteHeader(packet, chunk, options_.has_checksum, scratch_);
  auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(scratch_.data()), scratch_.size());
  ChunkTag tag{};
  if (options_.authenticates && packet.type == PacketType::kData) {
    tag = TagOf(packet, chunk, send_chunk_key_);
  }
  Seal(bytes, peer_link_, send_key_, tag);
  paths_->Queue(packet.path, bytes, chunk);
}

// True if anything left, or might have.
bool Wire::Transmit() {
  if (!paths_->IsOpen()) return false;
  absl::Time now = Now(options_.clock);
  int packets = 0;
  size_t bytes = 0;
  receiver_->set_ack_delay(sender_->base_rtt() / kAcksMin);
  const auto sends = [&] {
    if (!paths_->CanSend() || !sender_->Next(now, outgoing_)) return false;
    JoinAcknowledgement(now);
    Write(outgoing_.packet, absl::MakeConstSpan(outgoing_.chunk, outgoing_.chunk_bytes));
    bytes += outgoing_.chunk_bytes;
    ++packets;
    return true;
  };
  // Answers go first, but for an acknowledgement that may leave with something else.
  const bool has_more = paths_->JoinedMost() == 0 || sends();
  while (paths_->CanSend() && receiver_->Next(now, answer_)) {
    // The way back of a path may be dead while the way there is not: this end's own sender knows.
    answer_.path = sender_->paths().UsableFrom(answer_.path);
    Write(answer_, {});
    ++packets;
  }
  const auto may_go_on = [&] { return packets < kPacketsPerTurn && bytes < kBytesPerTurn; };
  while (has_more && may_go_on() && sends()) continue;
  if (!may_go_on()) WantTurn();
  paths_->Flush();
  return packets > 0;
}

// In front of what is written next, where both make one message. Not of what asks whether a path is
// dead.
void Wire::JoinAcknowledgement(absl::Time now) {
  if (outgoing_.packet.type != PacketType::kData) return;
  const size_t both =
      AlignedPacket(kEnvelopeBytes + receiver_->AckBytes()) + kBeforeChunk + outgoing_.chunk_bytes;
  if (both > paths_->JoinedMost() || !receiver_->TakeAck(now, answer_)) return;
  answer_.path = outgoing_.packet.path;
  Write(answer_, {});
}

bool Wire::TakeSent() {
  bool moved = false;
  Completion done;
  while (!is_closed_ && sender_->TakeCompletion(done)) {
    moved = true;
    if (!done.status.ok()) {
      failure_ = done.status;
    } else if ((done.cookie & kControlCookie) != 0) {
      control_sent_.erase(done.cookie & ~kControlCookie);
    } else if (owner_ != nullptr) {
      owner_->OnWireSent(static_cast<uint32_t>(done.cookie));
    }
  }
  return moved;
}

// ---- Turns

bool Wire::OnTurn(absl::Time now) {
  if (is_closed_ || facts_.paths == 0) return false;
  if (!is_started()) Open(now);
  if (owner_ != nullptr) {
    const std::string words = paths_->Repair(sender_->paths());
    if (!words.empty()) owner_->OnWireWords(words);
    if (paths_->FollowPlan(facts_)) sender_->FollowPlan(facts_.planned, facts_.spare);
  }
  if (is_lingering_) linger_until_ = std::min(linger_until_, now + kLinger);
  bool moved = TakeArrivals();
  moved |= TakeSent();
  if (is_closed_) return true;
  if (failure_.ok()) failure_ = paths_->status();
  if (!failure_.ok()) {
    Fail(failure_);
    return true;
  }
  PostWaiting();
  moved |= Transmit();
  ArmDeadline();
  return moved;
}

void Wire::ArmDeadline() {
  absl::Time due = linger_until_;
  if (owner_ != nullptr) due = std::min(due, paths_->deadline());
  if (paths_->IsOpen()) due = std::min({due, sender_->deadline(), receiver_->deadline()});
  if (sender_->state() == ConnectionState::kConnecting) due = std::min(due, give_up_at_);
  SetDeadline(due);
}

void Wire::OnDeadline(absl::Time now) {
  if (is_closed_ || !is_started()) return;
  if (now >= linger_until_) return Close();
  if (sender_->state() == ConnectionState::kConnecting && now >= give_up_at_) {
    return Fail(absl::DeadlineExceededError(absl::StrCat(
        "no datagram came back within ", absl::FormatDuration(options_.connect_timeout),
        " (transport.connect_timeout), though its host answers by tcp; ", paths_->Suspicion())));
  }
  WantTurn();
}

void Wire::Fail(const absl::Status& why) {
  if (owner_ == nullptr) return Close();
  owner_->OnWireBroken(why);
}

void Wire::Close() {
  if (std::exchange(is_closed_, true)) return;
  if (is_started()) {
    const SenderStatistics& seen = sender_->statistics();
    WEFT_LOG_DEBUG("multipath: to ", options_.sender.peer, " ", seen.packets, " packets, of which ",
                   seen.retransmissions, " again, ", seen.spurious, " of them in vain; ",
                   seen.timeouts, " timeouts, ", seen.tail_probes, " probes of the last, ",
                   seen.paths_left, " paths left, ", seen.paths_back, " back");
  }
  owner_ = nullptr;
  paths_.reset();
  SetDeadline(absl::InfiniteFuture());
  incoming_.clear();
  data_waiting_.clear();
  control_waiting_.clear();
}

void Wire::Linger() {
  if (is_closed_) return;
  owner_ = nullptr;
  if (!is_started()) return Close();
  data_waiting_.clear();
  incoming_.clear();
  sender_->CancelIf([](uint64_t cookie) { return (cookie & kControlCookie) == 0; });
  PostControl();
  is_lingering_ = true;
  // The last that this end hears of may be that all has been said.
  receiver_->AcknowledgeNow();
  Transmit();
  WantTurn();
}

}  // namespace weft::net::multipath
