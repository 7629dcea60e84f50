// Carries a link's frames through UCX: an endpoint to the peer's worker, the frames that go out on
// it and those that come for the link. A frame is an active message: its header a FrameHeader, its
// data the payload. Large payloads come by rendezvous, straight to their place; those that are
// reduced come through two buffers of a wire's own.
#ifndef WEFT_NET_UCX_WIRE_H_
#define WEFT_NET_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/poller.h"
#include "net/tcp/frame.h"
#include "net/tcp/stream.h"
#include "net/ucx/worker.h"

namespace weft::net {

// The link that a wire belongs to.
class UcxWireOwner {
 public:
  virtual ~UcxWireOwner() = default;
  // As StreamOwner's, for frames that came this way.
  virtual absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) = 0;
  virtual absl::Status OnWireFrameDone(const FrameHeader& header) = 0;
  virtual void OnWireSent(uint32_t token) = 0;
  // The endpoint failed, or the peer broke the rules; from the poller.
  virtual void OnWireBroken(const absl::Status& why) = 0;
};

class UcxWire final : public PollHandler {
 public:
  UcxWire(Poller& poller, UcxWorker& worker, UcxWireOwner& owner);
  ~UcxWire() override;

  // What the other side needs to know of us, as a kAddress frame and its payload.
  FrameHeader address_header() const;
  const std::string& address() const { return worker_.address(); }
  // Where the other side's own address goes, and that it is there. InvalidArgument where it is
  // empty, or the second one.
  absl::StatusOr<PayloadTarget> AddressTarget(const FrameHeader& header);
  absl::Status Connect(const FrameHeader& header);

  // `payload` stays in place until OnWireSent(token); without one there is no such call. Kept until
  // Connect(), if that is still to come.
  void Send(const FrameHeader& header, const std::byte* payload, uint32_t token);

  uint64_t data_sent() const { return data_sent_; }        // frames of type kData
  uint64_t data_arrived() const { return data_arrived_; }  // wholly
  // Tells the other side how many those are. Said when nothing more is awaited, it lets a sender
  // leave without having to wait for the delivery of what UCX may still hold.
  void SayWhatArrived();

  // No byte of the owner's memory is read or written afterwards. What was sent and needs none of it
  // is still delivered.
  void Close();

  ucs_status_t TakeFrame(const FrameHeader& header, void* data, size_t length, bool rendezvous);

  bool OnTurn(absl::Time now) override;  // fetches what waits
  void OnDeadline(absl::Time now) override;

 private:
  struct Transfer;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Arrival {
    FrameHeader header;
    void* descriptor = nullptr;           // UCX's
    std::optional<PayloadTarget> target;  // once the owner has been asked
  };

  void Start(Transfer* transfer);
  bool Fetch(Arrival* arrival);  // false: no buffer is free
  void Finish(const FrameHeader& header);
  void Reduce(const PayloadTarget& target, const std::byte* data, size_t length);
  void Fail(const absl::Status& why);
  void DropArrivals();
  static void OnSent(void* request, ucs_status_t status, void* transfer);
  static void OnFetched(void* request, ucs_status_t status, size_t length, void* transfer);
  static void OnEndpointError(void* wire, ucp_ep_h endpoint, ucs_status_t status);
  void TransferDone(Transfer* transfer, ucs_status_t status);

  UcxWorker& worker_;
  UcxWireOwner& owner_;
  const uint32_t number_;
  uint32_t peer_number_ = 0;
  std::string peer_address_;
  ucp_ep_h endpoint_ = nullptr;
  bool closed_ = false;
  absl::Status failure_;
  bool waited_ = false;  // since it failed
  std::deque<Transfer*> before_connect_;
  std::unordered_set<Transfer*> transfers_;  // with UCX
  size_t holding_memory_ = 0;                // of those, transfers that use the owner's memory
  std::deque<Arrival> arrivals_;
  std::vector<std::unique_ptr<Line[]>> buffers_;  // free ones
  size_t buffers_made_ = 0;
  uint64_t data_sent_ = 0, data_arrived_ = 0;
  uint64_t data_delivered_ = 0;  // of data_sent_, as far as the other side has said
};

}  // namespace weft::net

#endif  // WEFT_NET_UCX_WIRE_H_
