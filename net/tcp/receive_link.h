// The accepting end of a tcp link: turns posted receives into clear-to-sends and puts the pieces
// that come where they belong.
#ifndef WEFT_NET_TCP_RECEIVE_LINK_H_
#define WEFT_NET_TCP_RECEIVE_LINK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/tcp/data_path.h"
#include "net/tcp/link_core.h"
#include "net/tcp/receive_matching.h"

namespace weft::net {

// Makes what carries a link's data; null: its sockets do.
using MakeReceiveDataPath =
    std::function<std::unique_ptr<ReceiveDataPath>(LinkCore&, ReceiveMatching&)>;

class TcpReceiveLink : public ReceiveLink, public LinkCore {
 public:
  // Told when it is destroyed, so that the transport does not look for it any more.
  using OnDestroyed = std::function<void(TcpReceiveLink*)>;
  TcpReceiveLink(TcpContext& context, Rank peer, OnDestroyed on_destroyed,
                 const MakeReceiveDataPath& make_path = nullptr);
  ~TcpReceiveLink() override;
  // Before Start(): sockets that are lost may be replaced, where the context has a book.
  void UseResumption(const LinkParameters& parameters, const std::vector<FileDescriptor>& sockets);
  virtual void Start(std::vector<FileDescriptor> sockets);

  Rank peer() const override { return peer_rank(); }
  const absl::Status& status() const override { return link_status(); }
  Posted PostNotice(absl::string_view bytes) override { return QueueNotice(bytes); }
  bool HoldsNotices() const override { return notices_queued(); }
  void Break(const absl::Status& why) override { LinkCore::Break(why); }
  std::string Describe() const override { return DescribeLink(); }
  std::vector<LaneReport> Lanes() const override { return LinkLanes(); }
  FlowCounters Counters() const override { return LinkCounters(counters_); }
  void Flush(const RegionView& where, Request* request) override;
  void NamePeer(absl::string_view name) override { set_peer_name(name); }
  Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) override;

 protected:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void FailRequests(const absl::Status& why) override;
  size_t posted() const { return matching_.posted(); }
  const ReceiveTarget* TargetOf(uint64_t id) const { return matching_.TargetOf(id); }
  const MessageKey* KeyOf(uint64_t id) const { return matching_.KeyOf(id); }
  virtual void SendClearToSend(const FrameHeader& header) {
    path_ != nullptr ? path_->SendClearToSend(header) : QueueControl(header);
  }

 private:
  void OnSent(uint32_t) override {}
  bool NextData(OutFrame*) override { return false; }
  bool HasData() const override { return false; }
  Link& link() override { return *this; }
  bool is_sender() const override { return false; }

  OnDestroyed on_destroyed_;
  ReceiveMatching matching_;
  std::unique_ptr<ReceiveDataPath> path_;  // last: it uses the others
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RECEIVE_LINK_H_
