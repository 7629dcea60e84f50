#include "net/tcp/send_link.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/tcp/receive_link.h"

namespace weft::net {
namespace {

// The upper end of transport.requests: no honest receiver has more posted.
constexpr size_t kClearToSendsMax = 1 << 20;

}  // namespace

TcpSendLink::~TcpSendLink() {
  if (connector_ != nullptr) connector_->Cancel();
  connector_.reset();
  Finish();
}

void TcpSendLink::Start(absl::string_view address, absl::Time now) {
  set_description(absl::StrCat(context().name, ", connecting to \"", address, "\""));
  const TransportOptions& own = context().options;
  if (!identity_.has_value()) identity_ = ConnectorIdentity{own.self, own.secret};
  address_ = std::string(address);
  connector_ = std::make_unique<Connector>(context(), *identity_, peer(), *this);
  connector_->Start(address, now);
}

void TcpSendLink::OnConnected(std::vector<FileDescriptor> sockets,
                              std::vector<std::string> received, absl::Time now) {
  if (context().book != nullptr) {
    set_resumption(MakeRedial(context(), *identity_, peer(), address_, connector_->parameters(),
                              connector_->planned_ways(), connector_->ways(), *this, now));
  }
  poller().DeferDelete(std::move(connector_));
  Attach(std::move(sockets), std::move(received));
}

void TcpSendLink::OnConnectFailed(const absl::Status& why, absl::Time /*now*/) {
  poller().DeferDelete(std::move(connector_));
  Break(why);
}

Posted TcpSendLink::PostSend(MessageKey key, const SendSource& source, Request* request) {
  if (!status().ok()) {
    request->Begin();
    request->Finish(status(), 0);
    return Posted::kAccepted;
  }
  if (sends_.used() >= context().requests_max) return Posted::kNotYet;
  uint32_t slot = sends_.Acquire();
  sends_[slot] = Send{};
  sends_[slot].key = key;
  sends_[slot].data = source.data;
  sends_[slot].request = request;
  counters_.Post(source.data.size());
  request->Begin();
  auto [entry, fresh] = waiting_.try_emplace(key.tag, Waiting{.sends = true});
  Waiting& waiting = entry->second;
  if (waiting.sends) {
    if (fresh) {
      waiting.first = slot;
    } else {
      sends_[waiting.last].next = slot;
    }
    waiting.last = slot;
    NoteAwaiting();
    return Posted::kAccepted;
  }
  uint32_t clear_slot = waiting.first;
  ClearToSend clear = clears_[clear_slot];
  clears_.Release(clear_slot);
  waiting.first = clear.next;
  if (waiting.first == kNoSlot) waiting_.erase(entry);
  Match(slot, clear);
  return Posted::kAccepted;
}

void TcpSendLink::OnClearToSend(const FrameHeader& header) {
  ClearToSend clear{header.receive, header.check, header.total, kNoSlot};
  auto [entry, fresh] = waiting_.try_emplace(header.tag, Waiting{.sends = false});
  Waiting& waiting = entry->second;
  if (!waiting.sends) {
    uint32_t slot = clears_.Acquire();
    clears_[slot] = clear;
    if (fresh) {
      waiting.first = slot;
    } else {
      clears_[waiting.last].next = slot;
    }
    waiting.last = slot;
    return;
  }
  uint32_t send_slot = waiting.first;
  waiting.first = sends_[send_slot].next;
  if (waiting.first == kNoSlot) waiting_.erase(entry);
  Match(send_slot, clear);
}

void TcpSendLink::Match(uint32_t send_slot, const ClearToSend& clear) {
  Send& send = sends_[send_slot];
  counters_.Match(send.data.size());
  bool too_long = send.data.size() > clear.capacity;
  if (send.key.check == clear.check && !too_long) {
    send.receive = clear.receive;
    active_.push_back(send_slot);
    active_bytes_ += send.data.size();
    WantTurn();
    return;
  }
  bool check_differs = send.key.check != clear.check;
  FrameHeader header;
  header.type = FrameType::kMismatch;
  header.receive = clear.receive;
  header.tag = send.key.tag;
  header.check = send.key.check;
  header.total = send.data.size();
  header.offset = check_differs ? 0 : 1;  // 1: too long
  SendMismatch(header);
  Complete(send_slot,
           MismatchStatus(!check_differs, send.key.tag, context().options.self, send.key.check,
                          send.data.size(), peer(), clear.check, clear.capacity));
}

bool TcpSendLink::IsActive(uint64_t tag) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](uint32_t slot) { return sends_[slot].key.tag == tag; });
}

bool TcpSendLink::IsIdle(uint64_t tag) const {
  return (waiting_.empty() || waiting_.count(tag) == 0) && !IsActive(tag);
}

TcpSendLink::TakenOver TcpSendLink::TakeFirstWaiting(uint64_t tag, const TakeOver& take) {
  const auto entry = waiting_.find(tag);
  if (entry == waiting_.end() || !entry->second.sends) return TakenOver::kNone;
  const uint32_t slot = entry->second.first;
  const Send& send = sends_[slot];
  if (IsActive(tag) || !take(send.key, send.data, send.request)) return TakenOver::kNotYet;
  entry->second.first = send.next;
  if (send.next == kNoSlot) waiting_.erase(entry);
  sends_[slot].request = nullptr;
  sends_.Release(slot);
  return TakenOver::kTaken;
}

// A socket's share of what waits, from one frame to a few.
uint64_t TcpSendLink::WriteBytes() const {
  const uint64_t frame = context().frame_bytes, growth = context().frame_growth;
  const uint64_t most = std::max(frame, std::min(frame, kFrameBytesMax / growth) * growth);
  const uint64_t share = active_bytes_ / std::max<size_t>(OpenStreams(), 1) / 64 * 64;
  return std::clamp(share, frame, most);
}

bool TcpSendLink::NextData(OutFrame* frame) {
  if (active_.empty()) return false;
  uint32_t slot = active_.front();
  Send& send = sends_[slot];
  size_t size = std::min<size_t>(send.data.size() - send.next_offset,
                                 PieceBytes(send.receive, send.data.size()));
  *frame = OutFrame{};
  frame->header.type = FrameType::kData;
  frame->header.length = size;
  frame->header.receive = send.receive;
  frame->header.tag = send.key.tag;
  frame->header.check = send.key.check;
  frame->header.offset = send.next_offset;
  frame->header.total = send.data.size();
  frame->payload = send.data.data() + send.next_offset;
  frame->token = slot;
  send.next_offset += size;
  counters_.Transmit(size);
  active_bytes_ -= size;
  ++send.frames_queued;
  if (send.next_offset == send.data.size()) active_.pop_front();
  return true;
}

void TcpSendLink::OnSent(uint32_t token) {
  Send& send = sends_[token];
  if (--send.frames_queued == 0 && send.next_offset == send.data.size()) {
    Complete(token, absl::OkStatus());
  }
}

void TcpSendLink::Complete(uint32_t slot, const absl::Status& status) {
  Request* request = std::exchange(sends_[slot].request, nullptr);
  size_t bytes = status.ok() ? sends_[slot].data.size() : 0;
  sends_.Release(slot);
  counters_.Finish(bytes);
  request->Finish(status, bytes);
}

absl::StatusOr<PayloadTarget> TcpSendLink::OnLinkFrame(const FrameHeader& header) {
  if (header.type != FrameType::kClearToSend) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", static_cast<int>(header.type),
                     " that does not belong on the sending end of a link"));
  }
  if (clears_.used() >= kClearToSendsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kClearToSendsMax, " receives posted on one link"));
  }
  return PayloadTarget{};
}

absl::Status TcpSendLink::OnLinkFrameDone(const FrameHeader& header) {
  OnClearToSend(header);
  return absl::OkStatus();
}

void TcpSendLink::FailRequests(const absl::Status& why) {
  active_.clear();
  active_bytes_ = 0;
  waiting_.clear();
  clears_ = {};
  for (uint32_t slot = 0; slot < sends_.size(); ++slot) {
    if (sends_[slot].request != nullptr) Complete(slot, why);
  }
  counters_.FinishAll();
}

}  // namespace weft::net
