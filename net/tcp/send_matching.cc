#include "net/tcp/send_matching.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "net/tcp/receive_matching.h"

namespace weft::net {
namespace {

// The upper end of transport.requests: no honest receiver has more posted.
constexpr size_t kClearToSendsMax = 1 << 20;

}  // namespace

SendMatching::Outcome SendMatching::Post(const MessageKey& key, const SendSource& source,
                                         Request* request) {
  const uint32_t slot = sends_.Acquire();
  sends_[slot] = Send{};
  sends_[slot].key = key;
  sends_[slot].data = source.data;
  sends_[slot].urgency = source.urgency;
  sends_[slot].waits = source.waits;
  sends_[slot].request = request;
  counters_.Post(source.data.size());
  request->Begin();
  const auto clear = matcher_.OfferB(key.tag, slot);
  return clear.has_value() ? Match(slot, *clear) : Outcome::kWaits;
}

absl::Status SendMatching::Admit(const FrameHeader& header) const {
  if (header.type != FrameType::kClearToSend) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", static_cast<int>(header.type),
                     " that does not belong on the sending end of a link"));
  }
  if (matcher_.waiting_a() >= kClearToSendsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kClearToSendsMax, " receives posted on one link"));
  }
  return absl::OkStatus();
}

SendMatching::Outcome SendMatching::OnClearToSend(const FrameHeader& header) {
  const ClearToSend clear{header.receive, header.check, header.total};
  const auto slot = matcher_.OfferA(header.tag, clear);
  return slot.has_value() ? Match(*slot, clear) : Outcome::kWaits;
}

SendMatching::Outcome SendMatching::Match(uint32_t slot, const ClearToSend& clear) {
  Send& send = sends_[slot];
  const bool check_differs = send.key.check != clear.check;
  const bool too_long = send.data.size() > clear.capacity;
  // No receiver waits for the bytes of a message that is refused.
  counters_.Match(check_differs || too_long ? 0 : send.data.size());
  if (!check_differs && !too_long) {
    send.receive = clear.receive;
    const auto place = std::upper_bound(
        active_.begin(), active_.end(), send.urgency,
        [this](uint8_t urgency, uint32_t other) { return urgency > sends_[other].urgency; });
    active_.insert(place, slot);
    active_bytes_ += send.data.size();
    return Outcome::kMatched;
  }
  mismatch_ = FrameHeader{};
  mismatch_.type = FrameType::kMismatch;
  mismatch_.receive = clear.receive;
  mismatch_.tag = send.key.tag;
  mismatch_.check = send.key.check;
  mismatch_.total = send.data.size();
  mismatch_.offset = check_differs ? 0 : 1;  // 1: too long
  Complete(slot, MismatchStatus(!check_differs, send.key.tag, self_, send.key.check,
                                send.data.size(), peer_, clear.check, clear.capacity));
  return Outcome::kMismatch;
}

bool SendMatching::IsActive(uint64_t tag) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](uint32_t slot) { return sends_[slot].key.tag == tag; });
}

SendMatching::TakenOver SendMatching::TakeFirstWaiting(uint64_t tag, const TakeOver& take) {
  const uint32_t* first = matcher_.FirstB(tag);
  if (first == nullptr) return TakenOver::kNone;
  const uint32_t slot = *first;
  const Send& send = sends_[slot];
  if (send.waits) return TakenOver::kNone;
  if (IsActive(tag) || !take(send.key, send.data, send.request)) return TakenOver::kNotYet;
  matcher_.DropFirstB(tag);
  sends_[slot].request = nullptr;
  sends_.Release(slot);
  return TakenOver::kTaken;
}

bool SendMatching::NextData(size_t most, OutFrame* frame) {
  if (active_.empty()) return false;
  const uint32_t slot = active_.front();
  Send& send = sends_[slot];
  const size_t size = std::min<size_t>(send.data.size() - send.next_offset, most);
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

void SendMatching::OnSent(uint32_t token) {
  Send& send = sends_[token];
  if (--send.frames_queued == 0 && send.next_offset == send.data.size()) {
    Complete(token, absl::OkStatus());
  }
}

void SendMatching::Complete(uint32_t slot, const absl::Status& status) {
  Request* request = std::exchange(sends_[slot].request, nullptr);
  const size_t bytes = status.ok() ? sends_[slot].data.size() : 0;
  sends_.Release(slot);
  counters_.Finish(bytes);
  request->Finish(status, bytes);
}

void SendMatching::Fail(const absl::Status& why) {
  active_.clear();
  active_bytes_ = 0;
  matcher_.Clear();
  for (uint32_t slot = 0; slot < sends_.size(); ++slot) {
    if (sends_[slot].request != nullptr) Complete(slot, why);
  }
  counters_.FinishAll();
}

}  // namespace weft::net
