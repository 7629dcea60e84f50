#include "net/ucx/worker.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "net/ucx/wire.h"

namespace weft::net {
namespace {

constexpr int kProgressMax = 16;  // calls of ucp_worker_progress a turn

constexpr uint64_t kRendezvousMin = 16 << 10;
constexpr uint64_t kPieceMin = 4 << 10, kPieceRdma = 512 << 10;
constexpr int64_t kTcpSegment = 64 << 10;  // UCX's standard
constexpr int kCloseLooks = 1000;
constexpr int kLookMilliseconds = 2;
constexpr int kQuietLooks = 5;

absl::Status Configure(ucp_config_t* config, const char* name, const std::string& value) {
  if (value.empty()) return absl::OkStatus();
  return UcxStatus(ucp_config_modify(config, name, value.c_str()),
                   absl::StrCat("set UCX_", name, " to \"", value, "\""));
}

// Whether UCX may take another transport than these, which copy on the way whatever is asked for.
bool MayUseRdma(absl::string_view tls) {
  static constexpr std::array<absl::string_view, 7> kCopying = {"tcp", "self",  "sm",  "shm",
                                                                "mm",  "posix", "sysv"};
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  if (error || devices == std::filesystem::directory_iterator()) return false;
  const std::vector<absl::string_view> names = absl::StrSplit(tls, ',', absl::SkipEmpty());
  return names.empty() || std::any_of(names.begin(), names.end(), [](absl::string_view name) {
           return !absl::c_linear_search(kCopying, name);
         });
}

// UCX's tcp puts together what is longer than its receive segments, in a copy of its own. Pieces
// that all but fill them are slower by a third, why is not known.
uint64_t PieceForTcp() {
  const char* given = std::getenv("UCX_TCP_RX_SEG_SIZE");
  const absl::StatusOr<Bytes> parsed = ParseBytes(given == nullptr ? "" : given);
  const int64_t segment = parsed.ok() ? parsed->count() : kTcpSegment;
  return static_cast<uint64_t>(segment / 8 * 7);
}

uint64_t BytesOr(const Settings& settings, const char* name, uint64_t standard) {
  const int64_t asked = settings.ByteCount(name).count();
  return asked > 0 ? static_cast<uint64_t>(asked) : standard;
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, absl::string_view doing) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(doing, ": UCX: ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const Settings& settings) {
  std::unique_ptr<UcxWorker> out(new UcxWorker());
  WEFT_RETURN_IF_ERROR(out->Open(settings));
  return out;
}

absl::Status UcxWorker::Open(const Settings& settings) {
  const std::string& tls = settings.Text("ucx.tls");
  const char* given = std::getenv("UCX_TLS");
  const bool rdma = MayUseRdma(tls.empty() && given != nullptr ? given : tls);
  piece_bytes_ = BytesOr(settings, "ucx.piece_bytes", rdma ? kPieceRdma : PieceForTcp());
  piece_bytes_ = std::clamp(piece_bytes_, kPieceMin, kFrameBytesMax) / 64 * 64;
  rendezvous_min_ = BytesOr(settings, "ucx.rendezvous_min",
                            rdma ? kRendezvousMin : std::numeric_limits<uint64_t>::max());
  ucp_config_t* config = nullptr;
  WEFT_RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &config), "read UCX's settings"));
  absl::Status set = Configure(config, "TLS", tls);
  if (set.ok()) set = Configure(config, "NET_DEVICES", settings.Text("ucx.net_devices"));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (set.ok()) set = UcxStatus(ucp_init(&params, config, &context_), "start UCX");
  ucp_config_release(config);
  WEFT_RETURN_IF_ERROR(set);

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  WEFT_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_create(context_, &worker, &worker_), "make a UCX worker"));
  WEFT_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "get the UCX worker's descriptor"));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::OnFrame;
  handler.arg = this;
  WEFT_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_set_am_recv_handler(worker_, &handler), "take UCX's active messages"));
  ucp_address_t* address = nullptr;
  size_t length = 0;
  WEFT_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_address(worker_, &address, &length),
                                 "get the UCX worker's address"));
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  if (address_.size() <= kWorkerAddressBytesMax) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the UCX worker's address has ", address_.size(), " bytes; at most ", kWorkerAddressBytesMax,
      " are passed on: name fewer devices in ucx.net_devices"));
}

// Before 1.14 UCX aborts the process when its worker goes while it owes an answer to somebody who
// connects, be it to an endpoint that is closed here already. (A flush would wait for that, but
// what it leaves behind where it cannot end aborts the process as well.)
void UcxWorker::AnswerConnecting() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  if (std::pair(major, minor) >= std::pair(1u, 14u)) return;
  for (int quiet = 0, look = 0; quiet < kQuietLooks && look < kCloseLooks; ++look) {
    quiet = Progress() ? 0 : quiet + 1;
    if (quiet > 0) poll(nullptr, 0, kLookMilliseconds);
  }
}

UcxWorker::~UcxWorker() {
  for (int look = 0; look < kCloseLooks && !closing_.empty(); ++look) {
    if (!Progress()) poll(nullptr, 0, kLookMilliseconds);
  }
  if (!closing_.empty())
    WEFT_LOG_DEBUG("ucx: ", closing_.size(), " endpoints did not close in time");
  for (void* request : closing_) ucp_request_free(request);
  if (worker_ != nullptr) {
    AnswerConnecting();
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) ucp_cleanup(context_);
}

bool UcxWorker::Progress() {
  int turns = 0;
  while (turns < kProgressMax && ucp_worker_progress(worker_) > 0) ++turns;
  ReapClosed();
  return turns > 0;
}

uint32_t UcxWorker::Register(UcxWire* wire) {
  while (wires_.count(next_number_) > 0) ++next_number_;
  wires_[next_number_] = wire;
  return next_number_++;
}

ucs_status_t UcxWorker::OnFrame(void* arg, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxWorker*>(arg);
  FrameHeader frame;
  if (header_length != sizeof frame) return UCS_OK;  // nobody of ours
  std::memcpy(&frame, header, sizeof frame);
  auto found = self->wires_.find(static_cast<uint32_t>(frame.link));
  if (found == self->wires_.end()) return UCS_OK;  // a link that has gone since
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return found->second->TakeFrame(frame, data, length, rendezvous);
}

void UcxWorker::CloseEndpoint(ucp_ep_h endpoint, bool at_once) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = at_once ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxWorker::ReapClosed() {
  for (size_t i = 0; i < closing_.size();) {
    if (ucp_request_check_status(closing_[i]) == UCS_INPROGRESS) {
      ++i;
      continue;
    }
    ucp_request_free(closing_[i]);
    closing_[i] = closing_.back();
    closing_.pop_back();
  }
}

}  // namespace weft::net
