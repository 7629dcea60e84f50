#include "net/tcp/receive_matching.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {

absl::Status MismatchStatus(bool too_long, uint64_t tag, Rank sender, uint64_t sender_check,
                            uint64_t sender_bytes, Rank receiver, uint64_t receiver_check,
                            uint64_t receiver_bytes) {
  if (too_long) {
    return absl::OutOfRangeError(
        absl::StrCat("message with tag ", tag, ": rank ", sender.value(), " sends ", sender_bytes,
                     " bytes, but rank ", receiver.value(), " receives at most ", receiver_bytes));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "message check differs for tag ", tag, ": ", absl::Hex(sender_check), " at the sender (rank ",
      sender.value(), "), ", absl::Hex(receiver_check), " at the receiver (rank ", receiver.value(),
      "); the two ranks do not run the same operations in the same order"));
}

FrameHeader ReceiveMatching::Post(const MessageKey& key, const ReceiveTarget& target,
                                  Request* request) {
  const uint32_t slot = receives_.Acquire();
  Receive& receive = receives_[slot];
  const uint32_t generation = receive.generation + 1;
  receive = Receive{};
  receive.key = key;
  receive.target = target;
  receive.request = request;
  receive.generation = generation;
  counters_.Post(target.out.size());
  request->Begin();
  FrameHeader clear;
  clear.type = FrameType::kClearToSend;
  clear.receive = (static_cast<uint64_t>(generation) << 32) | slot;
  clear.tag = key.tag;
  clear.check = key.check;
  clear.total = target.out.size();
  return clear;
}

const ReceiveMatching::Receive* ReceiveMatching::At(uint64_t id) const {
  const auto slot = static_cast<uint32_t>(id);
  if (slot >= receives_.size()) return nullptr;
  const Receive& receive = receives_[slot];
  const bool is_it =
      receive.request != nullptr && receive.generation == static_cast<uint32_t>(id >> 32);
  return is_it ? &receive : nullptr;
}

const ReceiveTarget* ReceiveMatching::TargetOf(uint64_t id) const {
  const Receive* receive = At(id);
  return receive == nullptr ? nullptr : &receive->target;
}

const MessageKey* ReceiveMatching::KeyOf(uint64_t id) const {
  const Receive* receive = At(id);
  return receive == nullptr ? nullptr : &receive->key;
}

absl::StatusOr<uint32_t> ReceiveMatching::Find(const FrameHeader& header) const {
  if (At(header.receive) != nullptr) return static_cast<uint32_t>(header.receive);
  return absl::InvalidArgumentError(absl::StrCat("a frame of type ", static_cast<int>(header.type),
                                                 " for a receive that is not posted (id ",
                                                 header.receive, ")"));
}

absl::StatusOr<PayloadTarget> ReceiveMatching::OnFrame(const FrameHeader& header) {
  WEFT_ASSIGN_OR_RETURN(uint32_t slot, Find(header));
  Receive& receive = receives_[slot];
  if (header.type == FrameType::kMismatch && !receive.begun) return PayloadTarget{};
  if (header.type != FrameType::kData) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", static_cast<int>(header.type),
                     " that does not belong on the receiving end of a link, or not now"));
  }
  const ReceiveTarget& target = receive.target;
  WEFT_RETURN_IF_ERROR(CheckPiece(header, target.out.size()));
  bool first = !receive.begun;
  if (first) {
    receive.begun = true;
    receive.total = header.total;
    counters_.Match(header.total);
  }
  receive.begun_bytes += header.length;
  if (header.total != receive.total || receive.begun_bytes > receive.total ||
      (!first && header.length == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces of one message that disagree: ", receive.begun_bytes, " bytes of ",
                     receive.total, ", then of ", header.total));
  }
  PayloadTarget out;
  if (header.length == 0) return out;
  out.out = target.out.data() + header.offset;
  if (target.reduce != nullptr) {
    out.reduce = target.reduce;
    out.local = target.local + header.offset;
  }
  return out;
}

absl::Status ReceiveMatching::OnFrameDone(const FrameHeader& header) {
  WEFT_ASSIGN_OR_RETURN(uint32_t slot, Find(header));
  Receive& receive = receives_[slot];
  if (header.type == FrameType::kMismatch) {
    counters_.Match(0);
    Complete(slot,
             MismatchStatus(header.offset != 0, receive.key.tag, peer_, header.check, header.total,
                            self_, receive.key.check, receive.target.out.size()),
             0);
    return absl::OkStatus();
  }
  receive.done_bytes += header.length;
  counters_.Transmit(header.length);
  receive.tell_taken |= header.flags == kTellTaken;
  if (receive.done_bytes < receive.total) return absl::OkStatus();
  owes_telling_ |= receive.tell_taken;
  Complete(slot, absl::OkStatus(), receive.total);
  return absl::OkStatus();
}

void ReceiveMatching::Complete(uint32_t slot, const absl::Status& status, uint64_t bytes) {
  Request* request = std::exchange(receives_[slot].request, nullptr);
  receives_.Release(slot);
  counters_.Finish(status.ok() ? bytes : 0);
  request->Finish(status, bytes);
}

void ReceiveMatching::Fail(const absl::Status& why) {
  for (uint32_t slot = 0; slot < receives_.size(); ++slot) {
    if (receives_[slot].request != nullptr) Complete(slot, why, receives_[slot].done_bytes);
  }
  counters_.FinishAll();
}

}  // namespace weft::net
