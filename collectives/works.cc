#include "collectives/works.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

// A rank that had not made the group yet has not heard who seeks: it is asked again, first after
// the shorter pause, then ever less often.
constexpr int64_t kSeekPauseMinNs = 40'000'000;
constexpr int64_t kSeekPauseMaxNs = 1'000'000'000;

}  // namespace

std::string CollectiveWork::Describe() const {
  auto& group = const_cast<CollectiveWork*>(this)->group();
  std::lock_guard<std::mutex> lock(group.mutex);
  const bool known = group.next_sequence - sequence_ <= Group::kHistory;
  return absl::StrCat(
      "collective #", sequence_, ", ",
      known ? group.history[sequence_ % Group::kHistory].ToText() : ToString(entry_->spec.kind));
}

CallRecord CollectiveWork::ToRecord() const {
  CallRecord record;
  record.name = static_cast<RecordName>(entry_->spec.kind);
  record.type = static_cast<uint8_t>(type_);
  record.op = static_cast<uint8_t>(op_);
  record.sequence = sequence_;
  record.count = std::max(invocation_.input_length, invocation_.output_length);
  record.bytes = record.count * invocation_.element;
  record.check = invocation_.key.check;
  return record;
}

CallRecord MessageWork::ToRecord() const {
  CallRecord record;
  record.name = static_cast<RecordName>(sends_ ? kSendName : kReceiveName);
  record.type = static_cast<uint8_t>(DataType::kUint8);
  record.sequence = tag_;
  if (peer_ >= 0) record.peer = other().rank.value();
  record.bytes = record.count = bytes_;
  return record;
}

void MessageWork::Seek(Peers& peers) {
  for (size_t r = 0; r < group().peers.size(); ++r) {
    if (group().peers[r] != nullptr) peers.Seek(group(), static_cast<int>(r), tag_);
  }
}

void MessageWork::Remind(Peers& peers, int64_t now_ns) {
  if (peer_ >= 0 || now_ns < seek_ns_) return;
  if (seek_ns_ != 0) Seek(peers);
  seek_pause_ns_ = std::clamp(2 * seek_pause_ns_, kSeekPauseMinNs, kSeekPauseMaxNs);
  seek_ns_ = now_ns + seek_pause_ns_;
}

void MessageWork::Choose(Peers& peers, int peer) {
  peer_ = peer;
  Begin(peers);
}

bool MessageWork::Needs(int peer) const {
  if (complete_) return false;
  if (peer_ >= 0) return peer == peer_;
  const auto& peers = group().peers;
  return std::all_of(peers.begin(), peers.end(),
                     [](const Peer* other) { return other == nullptr || !other->gone.ok(); });
}

void MessageWork::Begin(Peers& peers) {
  if (peer_ < 0) return Seek(peers);
  if (!sends_) {
    group().any_source.Received(peer_, tag_);
  } else if (auto known = group().any_source.Sent(peer_, tag_)) {
    peers.Offer(group(), peer_, tag_, *known);
  }
  auto region = peers.Register(other().transport, data_, bytes_);
  if (region.ok()) {
    region_ = *std::move(region);
  } else {
    status_ = region.status();
  }
}

bool MessageWork::Advance(Peers& peers, uint64_t turn) {
  if (peer_ < 0) return false;
  if (!posted_) return status_.ok() && Post(peers, turn);
  if (complete_ || !request_.done() || !status_.ok()) return false;
  status_ = request_.status();
  if (status_.ok() && request_.bytes() != bytes_) {
    status_ = absl::FailedPreconditionError(
        absl::StrCat("it sent ", request_.bytes(), " bytes where ", bytes_, " were expected"));
  }
  complete_ = status_.ok();
  return true;
}

std::string MessageWork::Describe() const {
  if (peer_ < 0) {
    return absl::StrCat("receive of ", bytes_, " bytes from any rank with tag ", tag_);
  }
  return absl::StrCat(sends_ ? "send" : "receive", " of ", bytes_, " bytes ",
                      sends_ ? "to rank " : "from rank ", other().rank.value(), " with tag ", tag_);
}

bool MessageWork::Post(Peers& peers, uint64_t turn) {
  Peer& peer = other();
  uint64_t& full_turn = sends_ ? peer.send_full_turn : peer.receive_full_turn;
  if (full_turn == turn) return false;
  const net::MessageKey key{LinkTag(group().id, tag_, /*is_message=*/true), 0};
  net::Posted posted = net::Posted::kNotYet;
  if (sends_) {
    if (net::SendLink* link = peers.SendTo(peer); link != nullptr) {
      posted =
          link->PostSend(key, {region_.view(), false, static_cast<uint8_t>(priority)}, &request_);
    }
  } else if (peer.receive != nullptr) {
    posted = peer.receive->PostReceive(key, {.out = region_.view()}, &request_);
  }
  posted_ = posted == net::Posted::kAccepted;
  if (!posted_) {
    full_turn = turn;
    return false;
  }
  if (group().posted != nullptr) group().posted->Add(sends_, peer_, tag_);
  return true;
}

}  // namespace weft::collectives
