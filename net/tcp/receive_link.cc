#include "net/tcp/receive_link.h"

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

TcpReceiveLink::~TcpReceiveLink() {
  if (on_destroyed_) on_destroyed_(this);
  Finish();
}

void TcpReceiveLink::UseResumption(const LinkParameters& parameters,
                                   const std::vector<FileDescriptor>& sockets) {
  SocketAddress life = RemoteAddress(sockets[0].get());
  life.set_port(parameters.life_port);
  set_resumption(MakeAwait(context(), peer(), parameters, life, *this));
}

void TcpReceiveLink::Start(std::vector<FileDescriptor> sockets) {
  std::vector<std::string> received(sockets.size());
  Attach(std::move(sockets), std::move(received));
}

Posted TcpReceiveLink::PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) {
  if (!status().ok()) {
    request->Begin();
    request->Finish(status(), 0);
    return Posted::kAccepted;
  }
  if (receives_.used() >= context().requests_max) return Posted::kNotYet;
  uint32_t slot = receives_.Acquire();
  Receive& receive = receives_[slot];
  uint32_t generation = receive.generation + 1;
  receive = Receive{};
  receive.key = key;
  receive.target = target;
  receive.request = request;
  receive.generation = generation;
  counters_.Post(target.out.size());
  request->Begin();
  FrameHeader header;
  header.type = FrameType::kClearToSend;
  header.receive = (static_cast<uint64_t>(generation) << 32) | slot;
  header.tag = key.tag;
  header.check = key.check;
  header.total = target.out.size();
  SendClearToSend(header);
  return Posted::kAccepted;
}

const TcpReceiveLink::Receive* TcpReceiveLink::At(uint64_t id) const {
  const auto slot = static_cast<uint32_t>(id);
  if (slot >= receives_.size()) return nullptr;
  const Receive& receive = receives_[slot];
  const bool is_it =
      receive.request != nullptr && receive.generation == static_cast<uint32_t>(id >> 32);
  return is_it ? &receive : nullptr;
}

const ReceiveTarget* TcpReceiveLink::TargetOf(uint64_t id) const {
  const Receive* receive = At(id);
  return receive == nullptr ? nullptr : &receive->target;
}

const MessageKey* TcpReceiveLink::KeyOf(uint64_t id) const {
  const Receive* receive = At(id);
  return receive == nullptr ? nullptr : &receive->key;
}

absl::StatusOr<uint32_t> TcpReceiveLink::Find(const FrameHeader& header) {
  if (At(header.receive) != nullptr) return static_cast<uint32_t>(header.receive);
  return absl::InvalidArgumentError(absl::StrCat("a frame of type ", static_cast<int>(header.type),
                                                 " for a receive that is not posted (id ",
                                                 header.receive, ")"));
}

absl::StatusOr<PayloadTarget> TcpReceiveLink::OnLinkFrame(const FrameHeader& header) {
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

absl::Status TcpReceiveLink::OnLinkFrameDone(const FrameHeader& header) {
  WEFT_ASSIGN_OR_RETURN(uint32_t slot, Find(header));
  Receive& receive = receives_[slot];
  if (header.type == FrameType::kMismatch) {
    counters_.Match(0);
    Complete(slot,
             MismatchStatus(header.offset != 0, receive.key.tag, peer(), header.check, header.total,
                            context().options.self, receive.key.check, receive.target.out.size()),
             0);
    return absl::OkStatus();
  }
  receive.done_bytes += header.length;
  counters_.Transmit(header.length);
  receive.tell_taken |= header.flags == kTellTaken;
  if (receive.done_bytes < receive.total) return absl::OkStatus();
  if (receive.tell_taken) OweTelling();
  Complete(slot, absl::OkStatus(), receive.total);
  return absl::OkStatus();
}

void TcpReceiveLink::Complete(uint32_t slot, const absl::Status& status, uint64_t bytes) {
  Request* request = std::exchange(receives_[slot].request, nullptr);
  receives_.Release(slot);
  counters_.Finish(status.ok() ? bytes : 0);
  request->Finish(status, bytes);
}

void TcpReceiveLink::FailRequests(const absl::Status& why) {
  for (uint32_t slot = 0; slot < receives_.size(); ++slot) {
    if (receives_[slot].request != nullptr) Complete(slot, why, receives_[slot].done_bytes);
  }
  counters_.FinishAll();
}

}  // namespace weft::net
