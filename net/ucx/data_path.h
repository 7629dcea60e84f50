// The two ends of a link over UCX: data and clear-to-sends take the wire; everything else, one
// socket.
#ifndef WEFT_NET_UCX_DATA_PATH_H_
#define WEFT_NET_UCX_DATA_PATH_H_

#include "net/tcp/data_path.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_matching.h"
#include "net/tcp/send_matching.h"
#include "net/ucx/wire.h"

namespace weft::net {

class UcxSendDataPath final : public SendDataPath, private UcxWireOwner {
 public:
  UcxSendDataPath(LinkSession& session, SendMatching& matching, UcxWorker& worker)
      : session_(session), matching_(matching), wire_(session.poller(), worker, *this) {}

 private:
  absl::Status Start() override;
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& header) override { return wire_.Connect(header); }
  void SendData() override;
  uint64_t promised() const override { return wire_.data_sent(); }
  void Close(const absl::Status& /*why*/) override { wire_.Close(); }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header) override;
  void OnWireSent(uint32_t token) override { matching_.OnSent(token); }
  void OnWireBroken(const absl::Status& why) override { session_.Break(why); }

  LinkSession& session_;
  SendMatching& matching_;
  UcxWire wire_;
};

class UcxReceiveDataPath final : public ReceiveDataPath, private UcxWireOwner {
 public:
  UcxReceiveDataPath(LinkSession& session, ReceiveMatching& matching, UcxWorker& worker)
      : session_(session), matching_(matching), wire_(session.poller(), worker, *this) {}

 private:
  absl::Status Start() override;
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& header) override;
  void SendClearToSend(const FrameHeader& header) override { wire_.Send(header, nullptr, 0); }
  bool StillArriving(uint64_t promised) const override { return wire_.data_arrived() < promised; }
  void Close(const absl::Status& /*why*/) override { wire_.Close(); }

  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override;
  absl::Status OnWireFrameDone(const FrameHeader& header) override;
  void OnWireSent(uint32_t) override {}
  void OnWireBroken(const absl::Status& why) override { session_.Break(why); }

  LinkSession& session_;
  ReceiveMatching& matching_;
  UcxWire wire_;
};

}  // namespace weft::net

#endif  // WEFT_NET_UCX_DATA_PATH_H_
