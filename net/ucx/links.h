// The two ends of a link over UCX: those of tcp, with one socket for everything but data and
// clear-to-sends, which take the wire.
#ifndef WEFT_NET_UCX_LINKS_H_
#define WEFT_NET_UCX_LINKS_H_

#include <string>
#include <vector>

#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"
#include "net/ucx/wire.h"

namespace weft::net {

class UcxSendLink final : public TcpSendLink, private UcxWireOwner {
 public:
  UcxSendLink(TcpContext& context, UcxWorker& worker, Rank peer)
      : TcpSendLink(context, peer), wire_(poller(), worker, *this) {}
  ~UcxSendLink() override { LinkCore::Finish(); }

 private:
  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  bool SendDataElsewhere() override;
  void FailRequests(const absl::Status& why) override;
  uint64_t sent_elsewhere() const override { return wire_.data_sent(); }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header) override;
  void OnWireSent(uint32_t token) override { OnSent(token); }
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  UcxWire wire_;
};

class UcxReceiveLink final : public TcpReceiveLink, private UcxWireOwner {
 public:
  UcxReceiveLink(TcpContext& context, UcxWorker& worker, Rank peer, OnDestroyed on_destroyed)
      : TcpReceiveLink(context, peer, std::move(on_destroyed)), wire_(poller(), worker, *this) {}
  ~UcxReceiveLink() override { LinkCore::Finish(); }
  void Start(std::vector<FileDescriptor> sockets) override;

 private:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void SendClearToSend(const FrameHeader& header) override { wire_.Send(header, nullptr, 0); }
  void FailRequests(const absl::Status& why) override;
  bool StillArriving(uint64_t sent_elsewhere) const override {
    return wire_.data_arrived() < sent_elsewhere;
  }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header) override;
  void OnWireSent(uint32_t) override {}
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  UcxWire wire_;
};

}  // namespace weft::net

#endif  // WEFT_NET_UCX_LINKS_H_
