#include "collectives/works.h"

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

// Tags of messages: group in the upper half, with this bit for point-to-point; number in the lower.
constexpr uint64_t kPointToPoint = uint64_t{1} << 63;

}  // namespace

std::string CollectiveWork::Describe() const {
  auto& group = const_cast<CollectiveWork*>(this)->group();
  std::lock_guard<std::mutex> lock(group.mutex);
  const bool known = group.next_sequence - sequence_ <= Group::kHistory;
  return absl::StrCat(
      "collective #", sequence_, ", ",
      known ? group.history[sequence_ % Group::kHistory].ToText() : ToString(entry_->spec.kind));
}

void MessageWork::Begin(Peers& peers) {
  auto region = peers.Register(other().transport, data_, bytes_);
  if (region.ok()) {
    region_ = *std::move(region);
  } else {
    status_ = region.status();
  }
}

bool MessageWork::Advance(Peers& peers, uint64_t turn) {
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
  return absl::StrCat(sends_ ? "send" : "receive", " of ", bytes_, " bytes ",
                      sends_ ? "to rank " : "from rank ",
                      const_cast<MessageWork*>(this)->other().rank.value(), " with tag ", tag_);
}

bool MessageWork::Post(Peers& peers, uint64_t turn) {
  Peer& peer = other();
  uint64_t& full_turn = sends_ ? peer.send_full_turn : peer.receive_full_turn;
  if (full_turn == turn) return false;
  const net::MessageKey key{kPointToPoint | uint64_t{group().id} << 32 | tag_, 0};
  net::Posted posted = net::Posted::kNotYet;
  if (sends_) {
    if (net::SendLink* link = peers.SendTo(peer); link != nullptr) {
      posted = link->PostSend(key, region_.view(), &request_);
    }
  } else if (peer.receive != nullptr) {
    posted = peer.receive->PostReceive(key, {.out = region_.view()}, &request_);
  }
  posted_ = posted == net::Posted::kAccepted;
  if (!posted_) full_turn = turn;
  return posted_;
}

}  // namespace weft::collectives
