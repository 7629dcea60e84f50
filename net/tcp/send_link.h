// The connecting end of a tcp link: matches posted sends with clear-to-sends of the same tag, first
// posted first matched, and cuts what is matched into frames.
#ifndef WEFT_NET_TCP_SEND_LINK_H_
#define WEFT_NET_TCP_SEND_LINK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/tcp/connector.h"
#include "net/tcp/data_path.h"
#include "net/tcp/link_core.h"
#include "net/tcp/send_matching.h"

namespace weft::net {

// Makes what carries a link's data; null: its sockets do.
using MakeSendDataPath = std::function<std::unique_ptr<SendDataPath>(LinkCore&, SendMatching&)>;

class TcpSendLink : public SendLink, public LinkCore, public ConnectorOwner {
 public:
  TcpSendLink(TcpContext& context, Rank peer, const MakeSendDataPath& make_path = nullptr);
  ~TcpSendLink() override;
  // Before Start(): the connector is not the transport's own rank.
  virtual void UseIdentity(const ConnectorIdentity& identity);
  SendDataPath* data_path() const { return path_.get(); }  // null: its sockets
  void Start(absl::string_view address, absl::Time now);

  Rank peer() const override { return peer_rank(); }
  const absl::Status& status() const override { return link_status(); }
  Posted PostNotice(absl::string_view bytes) override { return QueueNotice(bytes); }
  bool HoldsNotices() const override { return notices_queued(); }
  void Break(const absl::Status& why) override { LinkCore::Break(why); }
  std::string Describe() const override { return DescribeLink(); }
  std::vector<LaneReport> Lanes() const override { return LinkLanes(); }
  FlowCounters Counters() const override { return LinkCounters(counters_); }
  void NamePeer(absl::string_view name) override { set_peer_name(name); }
  Posted PostSend(MessageKey key, const SendSource& source, Request* request) override;
  bool connected() const override { return attached(); }

 protected:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void OnSent(uint32_t token) override { matching_.OnSent(token); }
  bool SendDataElsewhere() override {
    if (path_ == nullptr) return false;
    path_->SendData();
    return true;
  }
  bool NextData(OutFrame* frame) override {
    if (!matching_.HasData()) return false;
    const SendMatching::Head head = matching_.head();
    return matching_.NextData(PieceBytes(head.receive, head.total), frame);
  }
  // Most bytes of the next piece of a message of `total` bytes for the receiver's `receive`.
  virtual size_t PieceBytes(uint64_t /*receive*/, size_t /*total*/) const { return WriteBytes(); }
  void Follow(SendMatching::Outcome outcome);
  // Tells the receiver that a send matched a receive with another check, or a shorter one.
  virtual void SendMismatch(const FrameHeader& header) { QueueControl(header); }
  bool IsIdle(uint64_t tag) const { return matching_.IsIdle(tag); }
  using TakenOver = SendMatching::TakenOver;
  TakenOver TakeFirstWaiting(uint64_t tag, const SendMatching::TakeOver& take) {
    return matching_.TakeFirstWaiting(tag, take);
  }
  bool HasData() const override { return matching_.HasData(); }
  bool AwaitsPeer() const override { return matching_.outstanding() > 0; }
  uint64_t WriteBytes() const override;
  void FailRequests(const absl::Status& why) override;
  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;

 private:
  Link& link() override { return *this; }
  bool is_sender() const override { return true; }

  void OnConnectFailed(const absl::Status& why, absl::Time now) override;

  std::optional<ConnectorIdentity> identity_;
  std::string address_;
  std::unique_ptr<Connector> connector_;
  SendMatching matching_;
  std::unique_ptr<SendDataPath> path_;  // last: it uses the others
  const bool path_takes_posts_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SEND_LINK_H_
