// One UCP worker: what a transport's links share of UCX. It hands the frames that come as active
// messages to the wires that they are for, and closes endpoints in the background. No callback of
// UCX calls a user: what has to is left to the poller's next round.
#ifndef WEFT_NET_UCX_WORKER_H_
#define WEFT_NET_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"

namespace weft::net {

class UcxWire;

// The id of the active messages, whose header is a FrameHeader.
inline constexpr unsigned kFrameMessage = 1;

absl::Status UcxStatus(ucs_status_t status, absl::string_view doing);

class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const Settings& settings);
  // Waits for endpoints that are being closed, two seconds at most.
  ~UcxWorker();

  const std::string& address() const { return address_; }  // bytes
  ucp_worker_h handle() const { return worker_; }
  uint64_t piece_bytes() const { return piece_bytes_; }
  uint64_t rendezvous_min() const { return rendezvous_min_; }  // bytes

  bool Progress();  // true: something moved
  // Readable when there is work, once Arm() has returned true; false: there is some already.
  int event_fd() const { return event_fd_; }
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  // The number under which frames reach `wire`.
  uint32_t Register(UcxWire* wire);
  void Unregister(uint32_t number) { wires_.erase(number); }

  // With what was sent delivered first, or at once.
  void CloseEndpoint(ucp_ep_h endpoint, bool at_once);

 private:
  UcxWorker() = default;
  absl::Status Open(const Settings& settings);
  static ucs_status_t OnFrame(void* arg, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);
  void AnswerConnecting();
  void ReapClosed();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  uint64_t piece_bytes_ = 0, rendezvous_min_ = 0;
  uint32_t next_number_ = 1;
  std::unordered_map<uint32_t, UcxWire*> wires_;
  std::vector<void*> closing_;  // requests
};

}  // namespace weft::net

#endif  // WEFT_NET_UCX_WORKER_H_
