// What a wire makes of the packets that arrive: messages, and of those the owner's frames.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/multipath/udp/wire.h"

namespace weft::net::multipath {
namespace {

constexpr size_t kControlBytesMax = 16 << 10;  // of a message of control
constexpr uint64_t kControlAhead = 1024;       // numbers that may arrive before one that is missing

// Reduce functions need 64-byte alignment; a chunk has it unless it lies behind one of an odd size
// that came in the same receive.
const std::byte* Aligned(const std::byte* chunk, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(chunk) % 64 == 0) return chunk;
  alignas(64) static thread_local std::byte scrap[kChunkMax];
  std::memcpy(scrap, chunk, bytes);
  return scrap;
}

}  // namespace

std::byte* Wire::PlaceFor(const ChunkAddress& chunk, size_t bytes) {
  auto found = is_closed_ ? incoming_.end() : incoming_.find(chunk.message);
  if (found == incoming_.end()) return nullptr;
  const Incoming& incoming = found->second;
  bool is_stored = incoming.control == 0 && incoming.target.reduce == nullptr &&
                   chunk.length == incoming.header.length;
  if (!is_stored || !receiver_->IsMissing(chunk.message, chunk.offset, bytes)) return nullptr;
  return incoming.target.out + chunk.offset;
}

absl::Status Wire::Read(const Received& datagram, Packet& packet) const {
  WEFT_RETURN_IF_ERROR(ParseParts(datagram.header.subspan(kEnvelopeBytes), datagram.chunk,
                                  options_.has_checksum, packet));
  if (!options_.authenticates || packet.type != PacketType::kData ||
      HasTag(datagram.header, TagOf(packet, datagram.chunk, receive_chunk_key_))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("the chunk at byte ", packet.offset, " of message ",
                                          packet.message,
                                          " is not the one of its tag: damaged, or forged"));
}

void Wire::OnDatagram(const Received& datagram) {
  if (is_closed_ || !is_started()) return;
  absl::Status parsed = Read(datagram, packet_);
  if (!parsed.ok()) {
    if (paths_->NoteMalformed()) {
      WEFT_LOG_INFO("multipath: a damaged packet of ", options_.sender.peer,
                    " was dropped: ", parsed.message());
    }
    return;
  }
  WantTurn();
  paths_->OnHeard(packet_.path);
  switch (packet_.type) {
    case PacketType::kHello:
    case PacketType::kData:
    case PacketType::kProbe:
    case PacketType::kFinish:
      return receiver_->Receive({.packet = packet_,
                                 .chunk = datagram.chunk.data(),
                                 .chunk_bytes = static_cast<uint32_t>(datagram.chunk.size()),
                                 .marked = datagram.marked,
                                 .at = datagram.at},
                                datagram.now);
    default:
      return sender_->Receive(packet_, datagram.now, datagram.at);
  }
}

bool Wire::OnMessage(const Packet& packet) {
  if (owner_ == nullptr || !failure_.ok()) return false;
  Incoming incoming;
  if (packet.control != 0) {
    if (packet.control < control_expected_ || packet.control >= control_expected_ + kControlAhead ||
        packet.length > kControlBytesMax) {
      failure_ = absl::InvalidArgumentError(
          absl::StrCat("message ", packet.control, " of control with ", packet.length,
                       " bytes, where ", control_expected_, " is expected"));
      return false;
    }
    incoming.control = packet.control;
    incoming.bytes.resize(packet.length);
  } else {
    FrameHeader& header = incoming.header;
    header.type = FrameType::kData;
    header.length = header.total = packet.length;
    header.receive = packet.receive;
    absl::StatusOr<PayloadTarget> target = owner_->OnWireFrame(header);
    if (!target.ok()) {
      failure_ = target.status();
      return false;
    }
    incoming.target = *target;
  }
  incoming_.insert_or_assign(packet.message, std::move(incoming));
  return true;
}

void Wire::OnChunk(const Packet& packet, const std::byte* chunk, uint32_t bytes) {
  auto found = incoming_.find(packet.message);
  if (found == incoming_.end() || bytes == 0) return;
  Incoming& incoming = found->second;
  if (incoming.control != 0) {
    std::memcpy(incoming.bytes.data() + packet.offset, chunk, bytes);
  } else if (incoming.target.reduce != nullptr) {
    incoming.target.reduce(incoming.target.out + packet.offset,
                           incoming.target.local + packet.offset, Aligned(chunk, bytes), bytes);
  } else if (chunk != incoming.target.out + packet.offset) {  // else it was read there
    std::memcpy(incoming.target.out + packet.offset, chunk, bytes);
  }
}

// Messages that are whole. The owner may close this wire from within.
bool Wire::TakeArrivals() {
  bool moved = false;
  Completion done;
  while (!is_closed_ && receiver_->TakeCompletion(done)) {
    moved = true;
    auto found = incoming_.find(done.cookie);
    if (!done.status.ok() || found == incoming_.end()) {
      if (!done.status.ok()) failure_ = done.status;
      continue;
    }
    Incoming incoming = std::move(found->second);
    incoming_.erase(found);
    if (owner_ == nullptr) continue;
    if (incoming.control != 0) {
      control_ready_.emplace(incoming.control, std::move(incoming.bytes));
      TakeControl();
    } else {
      absl::Status taken = owner_->OnWireFrameDone(incoming.header, "");
      if (!taken.ok()) failure_ = taken;
    }
  }
  if (!moved || is_closed_) return moved;
  // The sender's owner waits for it, and nobody may drive this end any more. Else, where it would
  // cost a message, it is due soon anyway, or leaves with the next clear-to-send.
  const bool may_wait = paths_->JoinedMost() > 0 && owner_ != nullptr && owner_->ExpectsData();
  if (!may_wait) receiver_->AcknowledgeNow();
  return true;
}

void Wire::TakeControl() {
  while (!is_closed_ && !control_ready_.empty() &&
         control_ready_.begin()->first == control_expected_) {
    std::string bytes = std::move(control_ready_.begin()->second);
    control_ready_.erase(control_ready_.begin());
    ++control_expected_;
    absl::Status taken = TakeFrames(bytes);
    if (!taken.ok() && failure_.ok()) failure_ = taken;
  }
}

absl::Status Wire::TakeFrames(absl::string_view bytes) {
  while (!is_closed_ && !bytes.empty()) {
    FrameHeader header;
    if (bytes.size() < sizeof(header)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a cut frame of ", bytes.size(), " bytes in a message of control"));
    }
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes.remove_prefix(sizeof(header));
    WEFT_RETURN_IF_ERROR(CheckFrame(header));
    bool belongs = header.type == FrameType::kClearToSend || header.type == FrameType::kMismatch ||
                   header.type == FrameType::kNotice;
    if (!belongs || header.length > bytes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame of type ", static_cast<int>(header.type), " with ", header.length,
                       " bytes in a message of control"));
    }
    absl::string_view payload = bytes.substr(0, header.length);
    bytes.remove_prefix(header.length);
    WEFT_RETURN_IF_ERROR(owner_->OnWireFrame(header).status());
    WEFT_RETURN_IF_ERROR(owner_->OnWireFrameDone(header, payload));
  }
  return absl::OkStatus();
}

}  // namespace weft::net::multipath
