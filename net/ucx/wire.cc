#include "net/ucx/wire.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr size_t kBuffersMax = 2;  // of a wire, for what is reduced
constexpr size_t kScrapBytes = 64 << 10;
// An endpoint that fails is mostly that of a peer that has gone: its connection says how.
constexpr absl::Duration kFailureGrace = absl::Milliseconds(500);
// Transfers that are broken off end at once, where UCX works as described.
constexpr int kStopLooks = 2000;

}  // namespace

// What UCX is busy with. It outlives the wire, if UCX does not let go of it in time.
struct UcxWire::Transfer {
  UcxWire* wire = nullptr;
  FrameHeader header;
  const std::byte* payload = nullptr;  // of a send
  uint32_t token = 0;
  PayloadTarget target;  // of a fetch
  bool is_fetch = false;
  std::unique_ptr<Line[]> buffer;  // of a fetch that is reduced
};

UcxWire::UcxWire(Poller& poller, UcxWorker& worker, UcxWireOwner& owner)
    : PollHandler(poller), worker_(worker), owner_(owner), number_(worker.Register(this)) {}

UcxWire::~UcxWire() {
  Close();
  worker_.Unregister(number_);
  for (Transfer* transfer : transfers_) transfer->wire = nullptr;
}

FrameHeader UcxWire::address_header() const {
  FrameHeader header;
  header.type = FrameType::kAddress;
  header.length = worker_.address().size();
  header.receive = number_;
  return header;
}

absl::StatusOr<PayloadTarget> UcxWire::AddressTarget(const FrameHeader& header) {
  // UCX is given no length: it would read on behind an empty address.
  if (header.length == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its address frame for ucx has 0 bytes; the address of its UCX worker, of 1 to ",
        kWorkerAddressBytesMax, " bytes, is right"));
  }
  peer_address_.resize(header.length);
  PayloadTarget target;
  target.out = reinterpret_cast<std::byte*>(peer_address_.data());
  return target;
}

absl::Status UcxWire::Connect(const FrameHeader& header) {
  if (endpoint_ != nullptr || closed_) {
    return absl::InvalidArgumentError("a second address of a UCX worker");
  }
  peer_number_ = static_cast<uint32_t>(header.receive);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer_address_.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxWire::OnEndpointError;
  params.err_handler.arg = this;
  WEFT_RETURN_IF_ERROR(UcxStatus(ucp_ep_create(worker_.handle(), &params, &endpoint_),
                                 "connect to the worker of the peer"));
  for (Transfer* transfer : std::exchange(before_connect_, {})) Start(transfer);
  return absl::OkStatus();
}

void UcxWire::Send(const FrameHeader& header, const std::byte* payload, uint32_t token) {
  if (closed_) return;
  auto* transfer = new Transfer();
  transfer->wire = this;
  transfer->header = header;
  transfer->payload = payload;
  transfer->token = token;
  if (header.type == FrameType::kData) ++data_sent_;
  if (endpoint_ == nullptr) {
    before_connect_.push_back(transfer);
  } else {
    Start(transfer);
  }
}

void UcxWire::SayWhatArrived() {
  FrameHeader header;
  header.type = FrameType::kArrived;
  header.total = data_arrived_;
  Send(header, nullptr, 0);
}

void UcxWire::Start(Transfer* transfer) {
  transfer->header.link = peer_number_;
  const size_t length = transfer->payload == nullptr ? 0 : transfer->header.length;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = length > 0 && length >= worker_.rendezvous_min() ? UCP_AM_SEND_FLAG_RNDV
                                                                 : UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxWire::OnSent;
  param.user_data = transfer;
  transfers_.insert(transfer);
  holding_memory_ += length > 0 ? 1 : 0;
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kFrameMessage, &transfer->header, sizeof(FrameHeader),
                      transfer->payload, length, &param);
  if (!UCS_PTR_IS_PTR(request)) TransferDone(transfer, UCS_PTR_STATUS(request));
}

void UcxWire::OnSent(void* request, ucs_status_t status, void* transfer) {
  ucp_request_free(request);
  auto* done = static_cast<Transfer*>(transfer);
  if (done->wire != nullptr) {
    done->wire->TransferDone(done, status);
  } else {
    delete done;
  }
}

void UcxWire::OnFetched(void* request, ucs_status_t status, size_t /*length*/, void* transfer) {
  OnSent(request, status, transfer);
}

void UcxWire::TransferDone(Transfer* transfer, ucs_status_t status) {
  std::unique_ptr<Transfer> done(transfer);
  transfers_.erase(transfer);
  const bool is_fetch = done->is_fetch;
  if (is_fetch || (done->payload != nullptr && done->header.length > 0)) --holding_memory_;
  if (!closed_ && status != UCS_OK) {
    Fail(UcxStatus(status, is_fetch ? "fetch data" : "send"));
  } else if (!closed_ && is_fetch) {
    if (done->buffer != nullptr) Reduce(done->target, done->buffer[0].bytes, done->header.length);
    Finish(done->header);
  } else if (!closed_ && done->payload != nullptr) {
    owner_.OnWireSent(done->token);
  }
  if (done->buffer != nullptr) {
    buffers_.push_back(std::move(done->buffer));
    if (!arrivals_.empty()) WantTurn();
  }
}

ucs_status_t UcxWire::TakeFrame(const FrameHeader& header, void* data, size_t length,
                                bool rendezvous) {
  if (closed_) return UCS_OK;
  absl::Status checked = CheckFrame(header);
  const bool belongs = header.type == FrameType::kClearToSend || header.type == FrameType::kData ||
                       header.type == FrameType::kArrived;
  if (checked.ok() && (!belongs || header.length != length)) {
    checked =
        absl::InvalidArgumentError(absl::StrCat("a frame of type ", static_cast<int>(header.type),
                                                " with ", length, " bytes came through UCX"));
  }
  if (!checked.ok()) {
    Fail(checked);
    return UCS_OK;
  }
  if (header.type == FrameType::kArrived) {
    data_delivered_ = header.total;
    return UCS_OK;
  }
  if (rendezvous) {
    arrivals_.push_back({header, data, {}});
    WantTurn();
    return UCS_INPROGRESS;
  }
  absl::StatusOr<PayloadTarget> target = owner_.OnWireFrame(header);
  if (!target.ok()) {
    Fail(target.status());
    return UCS_OK;
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  if (target->reduce != nullptr) {
    Reduce(*target, bytes, length);
  } else if (length > 0) {
    std::memcpy(target->out, bytes, length);
  }
  Finish(header);
  return UCS_OK;
}

// UCX aligns payload arbitrarily; reduce functions need 64 bytes.
void UcxWire::Reduce(const PayloadTarget& target, const std::byte* data, size_t length) {
  if (reinterpret_cast<uintptr_t>(data) % 64 == 0) {
    target.reduce(target.out, target.local, data, length);
    return;
  }
  alignas(64) static thread_local std::byte scrap[kScrapBytes];
  for (size_t at = 0; at < length; at += kScrapBytes) {
    const size_t bytes = std::min(kScrapBytes, length - at);
    std::memcpy(scrap, data + at, bytes);
    target.reduce(target.out + at, target.local + at, scrap, bytes);
  }
}

void UcxWire::Finish(const FrameHeader& header) {
  if (header.type == FrameType::kData) ++data_arrived_;
  absl::Status done = owner_.OnWireFrameDone(header);
  if (!done.ok()) Fail(done);
}

bool UcxWire::OnTurn(absl::Time) {
  bool moved = false;
  while (!closed_ && !arrivals_.empty() && failure_.ok()) {
    if (!Fetch(&arrivals_.front())) break;
    moved = true;
  }
  return moved;
}

bool UcxWire::Fetch(Arrival* arrival) {
  if (!arrival->target.has_value()) {
    absl::StatusOr<PayloadTarget> target = owner_.OnWireFrame(arrival->header);
    if (!target.ok()) {
      Fail(target.status());
      return true;
    }
    arrival->target = *target;
  }
  const bool reduces = arrival->target->reduce != nullptr;
  if (reduces && buffers_.empty()) {
    if (buffers_made_ == kBuffersMax) return false;
    buffers_.emplace_back(
        new Line[kFrameBytesMax / sizeof(Line)]);  // pages are the kernel's until used
    ++buffers_made_;
  }
  auto* transfer = new Transfer();
  transfer->wire = this;
  transfer->header = arrival->header;
  transfer->is_fetch = true;
  transfer->target = *arrival->target;
  if (reduces) {
    transfer->buffer = std::move(buffers_.back());
    buffers_.pop_back();
  }
  void* descriptor = arrival->descriptor;
  arrivals_.pop_front();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &UcxWire::OnFetched;
  param.user_data = transfer;
  transfers_.insert(transfer);
  ++holding_memory_;
  std::byte* into = reduces ? transfer->buffer[0].bytes : transfer->target.out;
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_.handle(), descriptor, into, transfer->header.length, &param);
  if (!UCS_PTR_IS_PTR(request)) TransferDone(transfer, UCS_PTR_STATUS(request));
  return true;
}

void UcxWire::OnEndpointError(void* wire, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto* self = static_cast<UcxWire*>(wire);
  self->Fail(UcxStatus(status, "the endpoint failed"));
}

// Not here and now: this is called from within UCX.
void UcxWire::Fail(const absl::Status& why) {
  if (closed_ || !failure_.ok()) return;
  failure_ = why;
  SetDeadline(absl::InfinitePast());
}

void UcxWire::OnDeadline(absl::Time now) {
  if (closed_ || failure_.ok()) return;
  if (absl::IsUnavailable(failure_) && !waited_) {
    waited_ = true;
    return SetDeadline(now + kFailureGrace);
  }
  owner_.OnWireBroken(failure_);
}

void UcxWire::DropArrivals() {
  for (Arrival& arrival : arrivals_) ucp_am_data_release(worker_.handle(), arrival.descriptor);
  arrivals_.clear();
}

void UcxWire::Close() {
  if (std::exchange(closed_, true)) return;
  SetDeadline(absl::InfiniteFuture());
  DropArrivals();
  for (Transfer* transfer : before_connect_) delete transfer;
  before_connect_.clear();
  if (endpoint_ == nullptr) return;
  // Clear-to-sends and the like are of no use to anybody any more.
  const bool undelivered = data_delivered_ < data_sent_;
  worker_.CloseEndpoint(endpoint_, holding_memory_ > 0 || !failure_.ok() || !undelivered);
  endpoint_ = nullptr;
  for (int look = 0; holding_memory_ > 0 && look < kStopLooks; ++look) {
    if (!worker_.Progress()) poll(nullptr, 0, 1);
  }
  if (holding_memory_ > 0) {
    WEFT_LOG_ERROR("ucx: ", holding_memory_,
                   " transfers of a closed link do not end; its memory may still be used");
  }
}

}  // namespace weft::net
