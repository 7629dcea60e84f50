// The two ends of a link over verbs: those of tcp, with one socket for everything but data and
// clear-to-sends, which take the wire.
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
#include "net/verbs/wire.h"

namespace weft::net {

// Memory of a receiving end for pieces that are combined with what is there: slots that the sender
// fills and the receiver gives back.
inline constexpr int kStagingSlots = 16;
inline constexpr size_t kStagingSlotBytes = 128 << 10;

class VerbsSendLink final : public TcpSendLink, private VerbsWireOwner {
 public:
  VerbsSendLink(TcpContext& context, VerbsShared& shared, const SourcePorts& ports, Rank peer)
      : TcpSendLink(context, peer),
        ports_(ports),
        wire_(poller(), shared, *this, /*leads=*/true, peer.value()) {}
  ~VerbsSendLink() override { LinkCore::Finish(); }
  std::string Describe() const override;
  std::vector<LaneReport> Lanes() const override { return wire_.Lanes(); }

 private:
  // Where the bytes of a posted receive go.
  struct Target {
    uint64_t address = 0;
    std::array<uint32_t, kVerbsRailsMax> keys{};
    bool combine = false;
    bool direct = false;  // however small they are
  };

  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;
  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  size_t PieceBytes(uint64_t receive, size_t total) const override;
  bool NextData(OutFrame* frame) override;
  void FailRequests(const absl::Status& why) override;
  absl::Status KnownEnd() const override { return wire_.failure(); }
  uint64_t sent_elsewhere() const override { return data_delivered_; }

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t token) override;
  void OnRoom() override { sending_failed_.ok() ? OnWritable() : Break(sending_failed_); }
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  absl::Status OnClearToSend(const EntryHeader& header);
  bool SendPiece(const OutFrame& frame);

  const SourcePorts& ports_;
  std::string control_;                           // as it arrives
  std::unordered_map<uint32_t, Target> targets_;  // by the receive's slot at the other side
  Target staging_;
  std::vector<uint8_t> staging_free_;
  std::optional<OutFrame> held_;  // taken from the base, waits for a staging slot
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
  Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) override;
  void Flush(const RegionView& where, Request* request) override;
  std::string Describe() const override;

 private:
  struct alignas(64) Staging {
    std::array<std::array<std::byte, kStagingSlotBytes>, kStagingSlots> slots;
  };

  absl::StatusOr<PayloadTarget> OnLinkFrame(const FrameHeader& header) override;
  absl::Status OnLinkFrameDone(const FrameHeader& header) override;
  void SendClearToSend(const FrameHeader& header) override;
  void FailRequests(const absl::Status& why) override;
  absl::Status KnownEnd() const override { return wire_.failure(); }
  bool StillArriving(uint64_t sent_elsewhere) const override {
    return data_arrived_ < sent_elsewhere;
  }

  absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) override;
  void OnDelivered(uint32_t) override {}
  void OnRoom() override;
  void SendControl(std::string bytes) override;
  void OnWireBroken(const absl::Status& why) override { Break(why); }

  absl::Status PutInPlace(const EntryHeader& header, const std::byte* payload,
                          const PayloadTarget& target);
  absl::Status AnnounceStaging();
  absl::Status SayWhere(EntryHeader* entry) const;

  VerbsShared& shared_;
  const SourcePorts& ports_;
  std::string control_;
  const ReceiveTarget* posting_ = nullptr;  // during PostReceive
  absl::Status posting_failed_;
  std::deque<EntryHeader> waiting_;  // clear-to-sends and the like that found no room
  std::string released_;             // staging slots to be given back
  std::unique_ptr<Staging> staging_;
  const MemoryCache::Entry* staging_keys_ = nullptr;
  uint64_t data_arrived_ = 0;
  VerbsWire wire_;  // last: it is destroyed first
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LINKS_H_
