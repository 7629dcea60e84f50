// The two ends of a link over verbs: data and clear-to-sends take the wire; everything else, one
// socket. Small messages go ahead of their clear-to-sends (net/eager.h); a receive that is as small
// holds its own back for a while, as it will hardly be needed. A small message that has to wait for
// its receive (SendSource::waits) is asked for at once, and travels in an entry as well, so that
// neither end registers its memory.
//
// An eager message that comes for a device's memory, which no processor writes, is given back in
// parts, which the sender writes there. From then on the link has no eager messages, and none
// either once a small message of a device's memory was to be sent.
#ifndef WEFT_NET_VERBS_DATA_PATH_H_
#define WEFT_NET_VERBS_DATA_PATH_H_

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/eager.h"
#include "net/tcp/data_path.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_matching.h"
#include "net/tcp/send_matching.h"
#include "net/tcp/slot_pool.h"
#include "net/verbs/own_pages.h"
#include "net/verbs/wire.h"

namespace weft::net {

// Memory of a receiving end for pieces that are reduced into what is there: slots that the sender
// fills and the receiver gives back.
inline constexpr int kStagingSlots = 16;
inline constexpr size_t kStagingSlotBytes = 128 << 10;
inline constexpr size_t kStagingBytes = kStagingSlots * kStagingSlotBytes;

// What an entry says of the message that a frame of tcp's is of.
EntryHeader EntryOf(EntryKind kind, const FrameHeader& frame);

class VerbsSendDataPath final : public SendDataPath, private VerbsWireOwner {
 public:
  VerbsSendDataPath(LinkSession& session, SendMatching& matching, VerbsShared& shared,
                    const SourcePorts& ports, Rank peer)
      : session_(session),
        matching_(matching),
        ports_(ports),
        peer_(peer),
        wire_(session.poller(), shared, *this, /*leads=*/true, peer.value()) {}

 private:
  // Tokens of the wire that are not slots of the matching: of what was given back, and of eager
  // messages.
  static constexpr uint32_t kEagerBit = 1u << 31, kAgainToken = kEagerBit - 1;

  // Where the bytes of a posted receive go.
  struct Target {
    uint64_t address = 0;
    std::array<uint32_t, kVerbsRailsMax> keys{};
    bool reduce = false;
    bool direct = false;  // however small they are
  };

  absl::Status Start() override { return wire_.Begin(ports_.For(peer_)); }
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& /*header*/) override {
    return wire_.OnControl(control_);
  }
  void SendData() override;
  bool TakesPosts() const override { return true; }  // some go eagerly
  Posted PostSend(const MessageKey& key, const SendSource& source, Request* request) override;
  absl::Status failure() const override { return wire_.failure(); }
  uint64_t promised() const override { return data_delivered_; }
  void Close(const absl::Status& why) override;
  std::string Describe() const override;
  std::vector<LaneReport> Lanes() const override { return wire_.lanes().Reports(); }
  void AddTo(FlowCounters* counters) const override { wire_.lanes().AddTo(counters); }

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t token) override;
  void OnRoom() override;
  void OnEagerDiffers(bool too_long, const std::string& why) override;
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { session_.Break(why); }

  absl::Status OnClearToSend(const EntryHeader& header);
  Posted PostOrdinarily(const MessageKey& key, const SendSource& source, Request* request);
  void Follow(SendMatching::Outcome outcome);
  void SendMismatch(const FrameHeader& frame);
  size_t PieceBytes(const SendMatching::Head& head) const;
  bool MayGoEagerly(const RegionView& data) const;
  bool SendEagerly(const MessageKey& key, const RegionView& data, Request* request);
  void SendHeldEagerly();
  void TurnOrdinary();
  void SendQueued();
  absl::Status SendAgain(const EntryHeader& header, const std::byte* payload);
  bool SendPiece(const OutFrame& frame);

  LinkSession& session_;
  SendMatching& matching_;
  const SourcePorts& ports_;
  const Rank peer_;
  std::string control_;                           // as it arrives
  std::unordered_map<uint32_t, Target> targets_;  // by the receive's slot at the other side
  Target staging_;
  std::vector<uint8_t> staging_free_;
  std::optional<OutFrame> held_;  // taken from the matching, waits for a staging slot
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

class VerbsReceiveDataPath final : public ReceiveDataPath, private VerbsWireOwner {
 public:
  VerbsReceiveDataPath(LinkSession& session, ReceiveMatching& matching, VerbsShared& shared,
                       const SourcePorts& ports, Rank peer)
      : session_(session),
        matching_(matching),
        shared_(shared),
        ports_(ports),
        peer_(peer),
        wire_(session.poller(), shared, *this, /*leads=*/false, peer.value()) {}
  ~VerbsReceiveDataPath() override;

 private:
  absl::Status Start() override { return wire_.Begin(ports_.For(peer_)); }
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& /*header*/) override {
    return wire_.OnControl(control_);
  }
  void SendClearToSend(const FrameHeader& header) override;
  void DropUnwanted() override;
  void Flush(const RegionView& where, Request* request) override;
  absl::Status failure() const override { return wire_.failure(); }
  bool StillArriving(uint64_t promised) const override {
    return data_arrived_ < promised || KeepsAfterEnd();
  }
  // What was sent before the other side closed the link waits for its receives, until one is posted
  // that nothing is there for.
  bool AwaitsReceives() const override { return KeepsAfterEnd() && matching_.posted() == 0; }
  bool KeepsAfterEnd() const { return session_.ClosedThere() && eager_.keeps(); }
  void Close(const absl::Status& why) override;
  std::string Describe() const override;

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t) override {}
  void OnRoom() override;
  void FillTaken(EntryHeader* taken) override;
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { session_.Break(why); }

  absl::Status OnEager(const EntryHeader& header, const std::byte* payload);
  bool Wants(uint64_t tag) const { return session_.context().options.events->Wants(tag); }
  absl::Status Deliver(uint64_t receive, uint64_t number, uint64_t check,
                       absl::Span<const std::byte> bytes);
  absl::Status GiveBack(uint64_t receive, absl::Span<const std::byte> bytes);
  void TurnOrdinary();
  void WriteClears();
  void SendQueued();
  absl::Status PutInPlace(const EntryHeader& header, const std::byte* payload,
                          const PayloadTarget& target);
  absl::Status AnnounceStaging();
  bool ComesInEntry(const ReceiveTarget& target) const;
  absl::StatusOr<EntryHeader> ClearToSendOf(uint64_t receive);
  absl::Status SayWhere(const RegionView& out, EntryHeader* entry) const;

  LinkSession& session_;
  ReceiveMatching& matching_;
  VerbsShared& shared_;
  const SourcePorts& ports_;
  const Rank peer_;
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
  OwnPages staging_;      // null: no receive has needed it
  const MemoryCache::Entry* staging_keys_ = nullptr;
  uint64_t data_arrived_ = 0;
  VerbsWire wire_;  // last: it is destroyed first
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_DATA_PATH_H_
