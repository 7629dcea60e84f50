// The two ends of a shm link.
#ifndef WEFT_NET_SHM_LINKS_H_
#define WEFT_NET_SHM_LINKS_H_

#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "net/eager.h"
#include "net/matcher.h"
#include "net/shm/endpoint.h"
#include "net/shm/peer_memory.h"
#include "net/shm/shared_memory.h"

namespace weft::net::shm {

// Once the receiver has asked for a message: copies from the user's buffer into cells and arena, or
// says where it lies, if it is large and the receiver may read it there. A small message is copied
// when it is posted (net/eager.h): its request is done then.
class ShmSendLink final : public SendLink, public Endpoint {
 public:
  ShmSendLink(ShmTransport* transport, Rank peer, std::unique_ptr<Connecting> connecting);
  ~ShmSendLink() override;

  Rank peer() const override { return peer_rank(); }
  const absl::Status& status() const override { return link_status(); }
  Posted PostNotice(absl::string_view bytes) override { return QueueNotice(bytes); }
  bool HoldsNotices() const override { return notices_queued(); }
  void Break(const absl::Status& why) override { Endpoint::Break(why); }
  std::string Describe() const override { return DescribeLink(); }
  Posted PostSend(MessageKey key, const SendSource& source, Request* request) override;
  bool connected() const override { return up(); }
  std::optional<uint32_t> Show(const std::byte* data, size_t bytes) override;
  void WakePeer() override;
  Link& link() override { return *this; }

 private:
  struct ClearToSend {
    uint64_t receive_id = 0;
    uint64_t check = 0;
    uint64_t capacity = 0;
    bool may_read = false;
    bool may_map = false;
  };
  struct Send {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    MessageKey key;
    bool warm = false;
    uint8_t urgency = 0;
    Request* request = nullptr;
  };
  struct Ready {  // a pair, on its way
    Send send;
    ClearToSend clear;
    std::shared_ptr<SharedMemory> shared = nullptr;  // that it lies in, if it may be offered there
    uint64_t offset = 0;
    uint64_t piece = 0;  // bytes a piece
  };
  struct Offer {
    Ready pair;
    uint32_t generation = 0;
    bool open = false;
    bool is_shared = false;
  };

  bool Move() override;
  absl::Status OnCell(const std::byte* body) override;
  void OnUp(const Wire& wire) override;
  void FailRequests(const absl::Status& status) override;
  bool CanMove() override;
  bool WaitsForSpace() const override { return !ready_.empty(); }
  bool QuietWhenAsleep() const override { return matcher_.waiting_b() == 0; }
  std::string Doing() const override;
  void OnCellPublished() override { arena_.Publish(writer_.produced()); }

  bool SendEagerly(const Send& send);
  absl::Status TakeClearToSend(const ClearToSendCell& cell);
  absl::Status TakeMatched(const EagerRecord& matched);
  void TakeDifference(const DiffersCell& cell);
  void Pair(const Send& send, const ClearToSend& clear);
  void AddReady(Ready pair);  // behind those that are as urgent, before those that are less
  bool PushPiece();
  template <typename PayloadCell>
  bool WriteCell(PayloadCell& cell, const std::byte* bytes, bool is_inline);
  uint64_t AllocateArena(uint64_t length);
  bool MayOffer(const Ready& pair) const {
    if (offer_min_ == 0 || pair.send.bytes < offer_min_) return false;
    return pair.shared != nullptr || (pair.clear.may_read && !pair.send.warm);
  }
  bool MakeOffer(Ready& pair);
  bool PushUnshares();
  absl::Status TakeAnswer(const std::byte* body);
  bool Refuse(const Ready& pair);
  void SyncArena() { arena_.Release(writer_.consumed()); }
  void Done(const absl::Status& status, uint64_t bytes);

  const uint64_t offer_min_;  // bytes
  uint64_t eager_max_;        // bytes
  size_t requests_max_;
  size_t posted_ = 0;
  Matcher<ClearToSend, Send> matcher_;
  EagerSends eager_;
  std::deque<Ready> ready_;  // the most urgent first, equal ones as they came
  std::vector<Offer> offers_;
  std::vector<uint32_t> closed_offers_;  // indexes to be used again
  SharesShown shares_;
  ArenaWriter arena_;
};

// Posts clear-to-sends and puts the pieces that come where they belong, or fetches a message from
// the sender's memory. Small messages that came before their receives were posted wait here.
class ShmReceiveLink final : public ReceiveLink, public Endpoint {
 public:
  ShmReceiveLink(ShmTransport* transport, Wire wire);
  ~ShmReceiveLink() override;

  Rank peer() const override { return peer_rank(); }
  const absl::Status& status() const override { return link_status(); }
  Posted PostNotice(absl::string_view bytes) override { return QueueNotice(bytes); }
  bool HoldsNotices() const override { return notices_queued(); }
  void Break(const absl::Status& why) override { Endpoint::Break(why); }
  std::string Describe() const override { return DescribeLink(); }
  Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) override;
  void DropUnwanted() override;
  ShownMemory Shown(uint32_t number) override;
  Link& link() override { return *this; }

 private:
  struct Receive {
    Request* request = nullptr;  // null: free
    MessageKey key;
    ReceiveTarget target;
    uint64_t received = 0;
    uint64_t total = 0;
    uint32_t generation = 0;
    bool matched = false;  // something has come for it
    bool offered = false;  // then of what is read: its urgency, where it lies, under which name
    uint8_t urgency = 0;
    uint64_t address = 0;
    uint64_t offer_id = 0;
    std::shared_ptr<const Mapping> shared;  // null: read from the peer's address space
  };

  bool Move() override;
  absl::Status OnCell(const std::byte* body) override;
  void OnUp(const Wire&) override {}
  void FailRequests(const absl::Status& status) override;
  bool CanMove() override;
  bool WaitsForSpace() const override { return !unsent_.empty() || !answers_.empty(); }
  bool KeepsAfterEnd() const override { return eager_.keeps() && posted_ == 0; }
  std::string Doing() const override;
  absl::Status OnPacket(const Packet& packet) override { return shares_.Take(packet); }

  absl::Status TakeOffer(const std::byte* body);
  std::shared_ptr<const Mapping> FindShown(uint32_t share);
  // What is reduced goes through the arena, or lies in memory that the sender shows: reading it
  // first into memory of ours costs more than the copy that it saves.
  bool MayRead(const Receive& receive) const;
  bool ReadOffers();
  void BreakRead(ReadResult result);
  ReadResult ReadPiece(Receive& receive);
  void Answer(Receive& receive, bool was_read);
  void PushAnswer(const std::variant<AnswerCell, DiffersCell>& cell);
  bool PushAnswers();
  bool PushMatched();
  template <typename PayloadCell>
  absl::StatusOr<const std::byte*> BytesOf(PayloadCell& cell, const std::byte* body);
  absl::Status TakeData(const std::byte* body);
  absl::Status TakeEager(const std::byte* body);
  // Eager message `number` is for this receive.
  void Deliver(Receive& receive, uint64_t number, uint64_t check,
               absl::Span<const std::byte> bytes);
  absl::Status TakeRefusal(const std::byte* body);
  Receive* Find(uint64_t receive_id);
  void Match(Receive& receive);
  uint64_t IdOf(const Receive& receive) const {
    return uint64_t{receive.generation} << 32 | static_cast<uint64_t>(&receive - receives_.data());
  }
  void Finish(Receive* receive, absl::Status status);
  void Place(const Receive& receive, uint64_t offset, uint64_t length, const std::byte* bytes);
  bool PushClearToSends();

  size_t requests_max_;
  size_t posted_ = 0;
  std::vector<Receive> receives_;
  std::vector<uint32_t> free_;
  std::deque<uint64_t> unsent_;  // receives whose clear-to-send is not in the ring yet
  PeerMemory memory_;
  SharesSeen shares_;
  const bool may_map_;
  EagerReceives eager_;
  std::deque<uint32_t> reading_;  // receives whose message is fetched, the most urgent first
  std::deque<std::variant<AnswerCell, DiffersCell>> answers_;  // not in the ring yet
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_LINKS_H_
