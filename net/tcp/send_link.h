// The connecting end of a tcp link: matches posted sends with clear-to-sends of the same tag, first
// posted first matched, and cuts what is matched into frames.
#ifndef WEFT_NET_TCP_SEND_LINK_H_
#define WEFT_NET_TCP_SEND_LINK_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/tcp/connector.h"
#include "net/tcp/link_core.h"
#include "net/tcp/slot_pool.h"

namespace weft::net {

class TcpSendLink : public SendLink, public LinkCore, public ConnectorOwner {
 public:
  TcpSendLink(TcpContext& context, Rank peer) : LinkCore(context, peer) {}
  ~TcpSendLink() override;
  // Before Start(): the connector is not the transport's own rank.
  virtual void UseIdentity(const ConnectorIdentity& identity) { identity_ = identity; }
  void Start(absl::string_view address, absl::Time now);

  Rank peer() const override { return peer_rank(); }
  const absl::Status& status() const override { return link_status(); }
  Posted PostNotice(absl::string_view bytes) override { return QueueNotice(bytes); }
  bool HoldsNotices() const override { return notices_queued(); }
  void Break(const absl::Status& why) override { LinkCore::Break(why); }
  std::string Describe() const override { return DescribeLink(); }
  std::vector<LaneReport> Lanes() const override { return LinkLanes(); }
  FlowCounters Counters() const override {
    FlowCounters counters = counters_;
    counters.repeats = sockets_replaced();
    return counters;
  }
  void NamePeer(absl::string_view name) override { set_peer_name(name); }
  Posted PostSend(MessageKey key, const SendSource& source, Request* request) override;
  bool connected() const override { return attached(); }

 protected:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void OnSent(uint32_t token) override;
  bool NextData(OutFrame* frame) override;
  // Most bytes of the next piece of a message of `total` bytes for the receiver's `receive`.
  virtual size_t PieceBytes(uint64_t /*receive*/, size_t /*total*/) const { return WriteBytes(); }
  // Tells the receiver that a send matched a receive with another check, or a shorter one.
  virtual void SendMismatch(const FrameHeader& header) { QueueControl(header); }
  // For sends that need no clear-to-send. Whether nothing of this tag waits: no send, no
  // clear-to-send, nothing matched that has not all been given away.
  bool IsIdle(uint64_t tag) const;
  // The first send of this tag that waits for a clear-to-send, once all that was matched before has
  // been given away: `take` may take it over, and its request with it.
  using TakeOver = std::function<bool(const MessageKey&, const RegionView&, Request*)>;
  enum class TakenOver : uint8_t { kNone, kNotYet, kTaken };
  TakenOver TakeFirstWaiting(uint64_t tag, const TakeOver& take);
  bool HasData() const override { return !active_.empty(); }
  bool AwaitsPeer() const override { return sends_.used() > 0; }
  uint64_t WriteBytes() const override;
  void FailRequests(const absl::Status& why) override;
  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;

 private:
  struct Send {
    MessageKey key;
    RegionView data;
    Request* request = nullptr;  // null: the slot is free
    uint64_t receive = 0;        // the receiver's id, once matched
    size_t next_offset = 0;      // up to here it was given to streams
    uint32_t frames_queued = 0;  // given to streams and not yet to the kernel
    uint32_t next = kNoSlot;     // with the same tag
  };
  struct ClearToSend {
    uint64_t receive = 0, check = 0, capacity = 0;
    uint32_t next = kNoSlot;
  };
  // What waits under one tag: sends or clear-to-sends, never both.
  struct Waiting {
    bool sends = false;
    uint32_t first = kNoSlot, last = kNoSlot;
  };

  bool IsActive(uint64_t tag) const;
  void Match(uint32_t send_slot, const ClearToSend& clear);
  void OnClearToSend(const FrameHeader& header);
  void Complete(uint32_t slot, const absl::Status& status);

  Link& link() override { return *this; }
  bool is_sender() const override { return true; }

  void OnConnectFailed(const absl::Status& why, absl::Time now) override;

  std::optional<ConnectorIdentity> identity_;
  std::string address_;
  std::unique_ptr<Connector> connector_;
  SlotPool<Send> sends_;
  SlotPool<ClearToSend> clears_;
  std::unordered_map<uint64_t, Waiting> waiting_;  // by tag
  std::deque<uint32_t> active_;                    // matched sends with something left to give
  uint64_t active_bytes_ = 0;                      // that are left
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SEND_LINK_H_
