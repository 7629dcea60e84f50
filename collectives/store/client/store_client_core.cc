#include "collectives/store/client/store_client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// What is cheaper to copy than to write from a place of its own.
constexpr size_t kCopiedBytes = 4096;
// A piece that has grown to this gets no more.
constexpr size_t kPieceBytes = size_t{64} << 10;

absl::string_view TextOf(const std::string& text,
                         const std::shared_ptr<const std::string>& shared) {
  return shared != nullptr ? absl::string_view(*shared) : absl::string_view(text);
}

}  // namespace

StoreClientCore::Frame StoreClientCore::MakeFrame(const StoreRequest& request) {
  Frame frame{EncodeRequest(request), nullptr};
  if (frame.text.size() > kCopiedBytes) {
    frame.shared = std::make_shared<const std::string>(std::move(frame.text));
    frame.text = std::string();
  }
  return frame;
}

void StoreClientCore::PushText(absl::string_view text) {
  bool joins = HasOutput() && outgoing_.back().shared == nullptr &&
               outgoing_.back().text.size() < kPieceBytes;
  if (!joins) outgoing_.emplace_back();
  outgoing_.back().text.append(text.data(), text.size());
  ++messages_sent_;
}

void StoreClientCore::Push(const Frame& frame) {
  if (frame.shared == nullptr) return PushText(frame.text);
  outgoing_.push_back(frame);
  ++messages_sent_;
}

StoreClientCore::StoreClientCore(const net::JobSecret& secret, StoreHello hello)
    : secret_(secret), hello_(std::move(hello)) {}

void StoreClientCore::Connected(bool local) {
  WEFT_CHECK(state_ == State::kAway, "state=" << static_cast<int>(state_));
  reader_ = StoreFrameReader(kStoreReplyBytesMax);
  reader_.set_sink(sink_);
  ClearOutput();
  state_ = State::kGreeting;
  if (!local) {
    net::HandshakeIdentity identity;
    identity.self = Rank(hello_.ranks == 1 ? hello_.rank : -1);
    identity.secret = secret_;
    identity.purpose = net::HandshakePurpose::kStore;
    handshake_.emplace(identity, Rank(), EncodeHello(hello_), net::NewNonce());
    return;
  }
  StoreRequest hello;
  hello.op = StoreOp::kHello;
  hello.keys = {EncodeHello(hello_)};
  Push(MakeFrame(hello));
  // On a later connection the server must first show that it is still the same one.
  if (server_id_.empty()) SendPending();
}

absl::Status StoreClientCore::Adopt(absl::string_view server_id, absl::string_view server) {
  WEFT_CHECK(state_ == State::kAway, "state=" << static_cast<int>(state_));
  reader_ = StoreFrameReader(kStoreReplyBytesMax);
  reader_.set_sink(sink_);
  WEFT_RETURN_IF_ERROR(Meet(server_id, server));
  SendPending();
  return absl::OkStatus();
}

void StoreClientCore::SendPending() {
  pending_.ForEach([this](uint64_t, const Frame& frame) { Push(frame); });
}

void StoreClientCore::Lost() {
  if (state_ == State::kGone) return;
  state_ = State::kAway;
  handshake_.reset();
  early_ = false;
  ClearOutput();
  files_.clear();
}

void StoreClientCore::GiveUp(absl::Status why) {
  if (state_ == State::kGone) return;
  Lost();
  state_ = State::kGone;
  gone_ = std::move(why);
  std::exchange(pending_, {}).ForEach([this](uint64_t id, const Frame&) {
    StoreResult result;
    result.status = gone_;
    answers_.push_back({id, std::move(result)});
  });
}

absl::Status StoreClientCore::Receive(absl::string_view bytes) {
  if (handshake_.has_value()) WEFT_RETURN_IF_ERROR(FeedHandshake(&bytes));
  while (!bytes.empty()) {
    size_t used = 0;
    WEFT_ASSIGN_OR_RETURN(std::optional<StoreFrame> frame, reader_.Feed(bytes, &used));
    bytes.remove_prefix(used);
    if (frame.has_value()) WEFT_RETURN_IF_ERROR(TakeReply(*frame));
  }
  // A descriptor comes with the first byte of its frame, which may have more to come.
  bool due = reader_.buffered() > 0 || reader_.in_payload();
  if (!files_.empty() && (!due || files_.size() > kFilesMax)) {
    files_.clear();
    return absl::InvalidArgumentError("the server sent a descriptor that no reply has asked for");
  }
  return absl::OkStatus();
}

absl::Status StoreClientCore::FeedHandshake(absl::string_view* bytes) {
  bytes->remove_prefix(handshake_->Feed(*bytes));
  if (std::string output = handshake_->TakeOutput(); !output.empty()) {
    PushText(output);
    // What waits goes with our hello, unless another store may have taken this one's place.
    early_ = handshake_->state() == net::HandshakeState::kRunning && server_id_.empty();
    if (early_) SendPending();
  }
  if (handshake_->state() == net::HandshakeState::kRunning) return absl::OkStatus();
  bool sent = std::exchange(early_, false);
  messages_received_ += 2;  // challenge, verdict
  absl::Status status = handshake_->status();
  std::string parameters = handshake_->parameters();
  handshake_.reset();
  if (status.ok() && parameters.size() < kStoreIdBytes) {
    status = absl::InvalidArgumentError("the server did not give its number");
  }
  if (!status.ok()) {
    // These do not get better by trying again.
    if (absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status)) GiveUp(status);
    return status;
  }
  absl::string_view view = parameters;
  WEFT_RETURN_IF_ERROR(Meet(view.substr(0, kStoreIdBytes), view.substr(kStoreIdBytes)));
  if (!sent) SendPending();
  return absl::OkStatus();
}

absl::Status StoreClientCore::Meet(absl::string_view id, absl::string_view description) {
  if (!server_id_.empty() && id != server_id_) {
    GiveUp(absl::UnavailableError(absl::StrCat("the store that was served by ", server_,
                                               " is gone: now ", description,
                                               " serves an empty one there")));
    return gone_;
  }
  server_id_ = std::string(id);
  server_ = std::string(description);
  state_ = State::kReady;
  return absl::OkStatus();
}

absl::Status StoreClientCore::TakeReply(StoreFrame& frame) {
  ++messages_received_;
  std::shared_ptr<const FileDescriptor> file;
  if (frame.in_file) {
    if (files_.empty()) return absl::InvalidArgumentError("a reply's descriptor is missing");
    file = std::make_shared<const FileDescriptor>(std::move(files_.front()));
    files_.erase(files_.begin());
  }
  WEFT_ASSIGN_OR_RETURN(StoreResult result, DecodeReply(frame, std::move(file)));
  if (frame.kind == (static_cast<uint16_t>(StoreOp::kHello) | kReplyBit)) {
    if (!result.status.ok()) {
      GiveUp(result.status);
      return result.status;
    }
    if (result.values.size() != 2) return absl::InvalidArgumentError("malformed hello reply");
    bool again = !server_id_.empty();
    WEFT_RETURN_IF_ERROR(Meet(result.values[0], result.values[1]));
    if (again) SendPending();
    return absl::OkStatus();
  }
  changing_.Erase(frame.id);
  if (pending_.Erase(frame.id)) answers_.push_back({frame.id, std::move(result)});
  return absl::OkStatus();
}

uint64_t StoreClientCore::Call(StoreRequest&& request) {
  request.id = next_id_++;
  if (state_ == State::kGone) {
    StoreResult result;
    result.status = gone_;
    answers_.push_back({request.id, std::move(result)});
    return request.id;
  }
  // A wait for a key, however long, does not keep the server from forgetting later replies.
  request.acknowledged = changing_.empty() ? request.id : changing_.first_key();
  if (ChangesState(request.op)) changing_.Insert(request.id, true);
  Frame frame = MakeFrame(request);
  // While the connection is not ready, the request goes with all others that have no reply.
  bool sends = state_ == State::kReady || early_ ||
               (state_ == State::kGreeting && !handshake_.has_value() && server_id_.empty());
  if (sends) Push(frame);
  pending_.Insert(request.id, std::move(frame));
  return request.id;
}

void StoreClientCore::Goodbye() {
  if (state_ != State::kReady) return;
  StoreRequest goodbye;
  goodbye.op = StoreOp::kGoodbye;
  goodbye.id = next_id_++;
  Push(MakeFrame(goodbye));
}

size_t StoreClientCore::Gather(iovec* parts, size_t parts_max) const {
  size_t count = 0;
  size_t skip = written_;
  for (size_t i = first_; i < outgoing_.size() && count < parts_max; ++i) {
    absl::string_view text = TextOf(outgoing_[i].text, outgoing_[i].shared);
    parts[count++] = {const_cast<char*>(text.data()) + skip, text.size() - skip};
    skip = 0;
  }
  return count;
}

void StoreClientCore::Wrote(size_t bytes) {
  written_ += bytes;
  while (HasOutput()) {
    Frame& frame = outgoing_[first_];
    size_t size = TextOf(frame.text, frame.shared).size();
    if (written_ < size) return;
    written_ -= size;
    frame.shared.reset();
    ++first_;
  }
  // The last piece's memory takes the next requests, unless it is much.
  bool keeps = outgoing_.size() == 1 && outgoing_[0].text.capacity() <= 2 * kCopiedBytes;
  if (!keeps) return ClearOutput();
  outgoing_[0].text.clear();
}

void StoreClientCore::ClearOutput() {
  outgoing_.clear();
  first_ = 0;
  written_ = 0;
}

}  // namespace weft::collectives
