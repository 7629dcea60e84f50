// The two ends of a link over verbs: those of tcp, with one socket for everything but data and
// clear-to-sends, which take the wire. Small messages go ahead of their clear-to-sends (eager.h); a
// receive that is as small holds its own back for a while, as it will hardly be needed.
//
// An eager message that comes for a device's memory, which no processor writes, is given back in
// parts, which the sender writes there. From then on the link has no eager messages, and none
// either once a small message of a device's memory was to be sent.
#ifndef WEFT_NET_VERBS_LINKS_H_
#define WEFT_NET_VERBS_LINKS_H_

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"
#include "net/verbs/eager.h"
#include "net/verbs/wire.h"

namespace weft::net {

// Memory of a receiving end for pieces that are reduced into what is there: slots that the sender
// fills and the receiver gives back.
inline constexpr int kStagingSlots = 16;
inline constexpr size_t kStagingSlotBytes = 128 << 10;

// What an entry says of the message that a frame of tcp's is of.
EntryHeader EntryOf(EntryKind kind, const FrameHeader& frame);

class VerbsSendLink final : public TcpSendLink, private VerbsWireOwner {
 public:
  VerbsSendLink(TcpContext& context, VerbsShared& shared, const SourcePorts& ports, Rank peer)
      : TcpSendLink(context, peer),
        ports_(ports),
        wire_(poller(), shared, *this, /*leads=*/true, peer.value()) {}
  ~VerbsSendLink() override { LinkCore::Finish(); }
  Posted PostSend(MessageKey key, const SendSource& source, Request* request) override;
  std::string Describe() const override;
  std::vector<LaneReport> Lanes() const override { return wire_.lanes().Reports(); }
  FlowCounters Counters() const override {
    FlowCounters counters = TcpSendLink::Counters();
    wire_.lanes().AddTo(&counters);
    return counters;
  }

 private:
  // Tokens of the wire that are not slots of the base: of what was given back, and of eager
  // messages.
  static constexpr uint32_t kEagerBit = 1u << 31, kAgainToken = kEagerBit - 1;

  // Where the bytes of a posted receive go.
  struct Target {
    uint64_t address = 0;
    std::array<uint32_t, kVerbsRailsMax> keys{};
    bool reduce = false;
    bool direct = false;  // however small they are
  };

  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  size_t PieceBytes(uint64_t receive, size_t total) const override;
  void SendMismatch(const FrameHeader& header) override;
  bool SendDataElsewhere() override;
  void FailRequests(const absl::Status& why) override;
  absl::Status KnownEnd() const override { return wire_.failure(); }
  uint64_t sent_elsewhere() const override { return data_delivered_; }

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t token) override;
  void OnRoom() override;
  void OnEagerDiffers(bool too_long, const std::string& why) override;
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  absl::Status OnClearToSend(const EntryHeader& header);
  bool MayGoEagerly(const RegionView& data) const;
  bool SendEagerly(const MessageKey& key, const RegionView& data, Request* request);
  void SendHeldEagerly();
  void TurnOrdinary();
  void SendQueued();
  absl::Status SendAgain(const EntryHeader& header, const std::byte* payload);
  bool SendPiece(const OutFrame& frame);

  const SourcePorts& ports_;
  std::string control_;                           // as it arrives
  std::unordered_map<uint32_t, Target> targets_;  // by the receive's slot at the other side
  Target staging_;
  std::vector<uint8_t> staging_free_;
  std::optional<OutFrame> held_;  // taken from the base, waits for a staging slot
  EagerSends eager_;
  bool ordinary_ = false;  // no eager messages (any more)
  // Requests of eager messages that are on their way, by the wire's token.
  struct Eager {
    Request* request = nullptr;
    size_t bytes = 0;
  };
  SlotPool<Eager> on_their_way_;
  std::deque<uint64_t>
      held_tags_;  // of small sends that could not go eagerly when they were posted
  struct Queued {  // for room
    EntryHeader header;
    std::string payload;
  };
  std::deque<Queued> queued_;
  absl::Status sending_failed_;
  uint64_t data_delivered_ = 0;
  VerbsWire wire_;  // last: it is destroyed first
};

class VerbsReceiveLink final : public TcpReceiveLink, private VerbsWireOwner {
 public:
  VerbsReceiveLink(TcpContext& context, VerbsShared& shared, const SourcePorts& ports, Rank peer,
                   OnDestroyed on_destroyed)
      : TcpReceiveLink(context, peer, std::move(on_destroyed)),
        shared_(shared),
        ports_(ports),
        wire_(poller(), shared, *this, /*leads=*/false, peer.value()) {}
  ~VerbsReceiveLink() override;
  void Start(std::vector<FileDescriptor> sockets) override;
  void Flush(const RegionView& where, Request* request) override;
  std::string Describe() const override;

 private:
  struct alignas(64) Staging {
    std::array<std::array<std::byte, kStagingSlotBytes>, kStagingSlots> slots;
  };

  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void SendClearToSend(const FrameHeader& header) override;
  void OnDeadline(absl::Time now) override;
  void FailRequests(const absl::Status& why) override;
  absl::Status KnownEnd() const override { return wire_.failure(); }
  bool StillArriving(uint64_t sent_elsewhere) const override {
    return data_arrived_ < sent_elsewhere || AwaitsReceives();
  }
  bool AwaitsReceives() const { return ClosedThere() && eager_.keeps(); }

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t) override {}
  void OnRoom() override;
  void FillTaken(EntryHeader* taken) override;
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  absl::Status OnEager(const EntryHeader& header, const std::byte* payload);
  absl::Status Deliver(uint64_t receive, uint64_t number, uint64_t check,
                       absl::Span<const std::byte> bytes);
  absl::Status GiveBack(uint64_t receive, absl::Span<const std::byte> bytes);
  void TurnOrdinary();
  void WriteClears();
  void SendQueued();
  absl::Status PutInPlace(const EntryHeader& header, const std::byte* payload,
                          const PayloadTarget& target);
  absl::Status AnnounceStaging();
  absl::StatusOr<EntryHeader> ClearToSendOf(uint64_t receive);
  absl::Status SayWhere(const RegionView& out, EntryHeader* entry) const;

  VerbsShared& shared_;
  const SourcePorts& ports_;
  std::string control_;
  absl::Status posting_failed_;
  EagerReceives eager_;
  bool ordinary_ = false;  // no clear-to-send is held back (any more)
  // Receives whose clear-to-sends are still to be written, in the order of posting. The first
  // urgent_ of them as soon as there is room; the others when the first of them is due.
  struct Clear {
    uint64_t receive = 0;
    absl::Time due;
  };
  std::deque<Clear> clears_;
  size_t urgent_ = 0;
  struct Queued {  // for room
    EntryHeader header;
    std::string payload;
  };
  std::deque<Queued> queued_;
  std::string released_;  // staging slots to be given back
  std::unique_ptr<Staging> staging_;
  const MemoryCache::Entry* staging_keys_ = nullptr;
  uint64_t data_arrived_ = 0;
  VerbsWire wire_;  // last: it is destroyed first
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LINKS_H_
