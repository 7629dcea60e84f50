// The accepting end of a tcp link: turns posted receives into clear-to-sends and puts the pieces
// that come where they belong.
#ifndef WEFT_NET_TCP_RECEIVE_LINK_H_
#define WEFT_NET_TCP_RECEIVE_LINK_H_

#include <string>
#include <vector>

#include "net/tcp/link_core.h"
#include "net/tcp/slot_pool.h"

namespace weft::net {

class TcpReceiveLink : public ReceiveLink, public LinkCore {
 public:
  // Told when it is destroyed, so that the transport does not look for it any more.
  using OnDestroyed = std::function<void(TcpReceiveLink*)>;
  TcpReceiveLink(TcpContext& context, Rank peer, OnDestroyed on_destroyed)
      : LinkCore(context, peer), on_destroyed_(std::move(on_destroyed)) {}
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
  FlowCounters Counters() const override {
    FlowCounters counters = counters_;
    counters.repeats = sockets_replaced();
    return counters;
  }
  void NamePeer(absl::string_view name) override { set_peer_name(name); }
  Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) override;

 protected:
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void FailRequests(const absl::Status& why) override;
  size_t posted() const { return receives_.used(); }
  // Target of a posted receive, by its id; valid until the next is posted. Null: none (any more).
  const ReceiveTarget* TargetOf(uint64_t id) const;
  const MessageKey* KeyOf(uint64_t id) const;
  virtual void SendClearToSend(const FrameHeader& header) { QueueControl(header); }

 private:
  struct Receive {
    MessageKey key;
    ReceiveTarget target;
    Request* request = nullptr;  // null: the slot is free
    uint32_t generation = 0;     // changes with each use, so that a stale id is noticed
    bool begun = false;          // a frame has come; `total` is known
    bool tell_taken = false;     // the sender waits for that
    uint64_t total = 0;
    uint64_t begun_bytes = 0;  // of all frames whose header has come: never above total
    uint64_t done_bytes = 0;
  };
  const Receive* At(uint64_t id) const;
  absl::StatusOr<uint32_t> Find(const FrameHeader& header);
  void Complete(uint32_t slot, const absl::Status& status, uint64_t bytes);

  void OnSent(uint32_t) override {}
  bool NextData(OutFrame*) override { return false; }
  bool HasData() const override { return false; }
  Link& link() override { return *this; }
  bool is_sender() const override { return false; }

  OnDestroyed on_destroyed_;
  SlotPool<Receive> receives_;
};

// The same words on both sides.
absl::Status MismatchStatus(bool too_long, uint64_t tag, Rank sender, uint64_t sender_check,
                            uint64_t sender_bytes, Rank receiver, uint64_t receiver_check,
                            uint64_t receiver_bytes);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RECEIVE_LINK_H_
