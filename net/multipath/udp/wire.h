// Carries one link's frames over its paths: a Sender and a Receiver for each direction, whose
// messages are the frames of tcp links (net/tcp/frame.h).
//
//   data            one message a send; every chunk names the receive it is for, so that it is put
//                   in place, or reduced, as it arrives, in whatever order
//   clear-to-send,  in messages of control, which carry several at once and overtake data; they are
//   notices, ...    numbered and handed on in order
//
// A packet of type Hello, Data, Probe or Finish is for the Receiver, any other for the Sender: so
// the two directions share paths and keys.
//
// Driven by the poller: in its turn it hands on what has arrived and sends what is queued. A link
// that is closed leaves its wire behind (Linger()) until the peer has its last messages.
#ifndef WEFT_NET_MULTIPATH_UDP_WIRE_H_
#define WEFT_NET_MULTIPATH_UDP_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/poller.h"
#include "net/multipath/receiver.h"
#include "net/multipath/sender.h"
#include "net/multipath/udp/datagram.h"
#include "net/multipath/udp/link_paths.h"
#include "net/tcp/frame.h"
#include "net/tcp/stream.h"

namespace weft::net::multipath {

// The link that a wire belongs to.
class WireOwner {
 public:
  virtual ~WireOwner() = default;
  // As StreamOwner's, for frames that came this way.
  virtual absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) = 0;
  virtual absl::Status OnWireFrameDone(const FrameHeader& header, absl::string_view notice) = 0;
  virtual void OnWireSent(uint32_t token) = 0;
  // Receives wait for data, so that this end goes on being driven.
  virtual bool ExpectsData() const = 0;
  // More frames of control are taken again.
  virtual void OnWireRoom() = 0;
  // For the other end's Connect(), over the link's connection.
  virtual void OnWireWords(const std::string& words) = 0;
  // For good; from the poller.
  virtual void OnWireBroken(const absl::Status& why) = 0;
};

struct WireOptions {
  SenderOptions sender;       // but for what the two ends agree on: chunk, paths, facts.packet
  uint32_t chunk_max = 0;     // what this end's interface carries,
  bool chunk_is_set = false;  // or what it was told to
  bool has_checksum = true;
  bool trusts_host = false;  // as Address's
  // Every chunk has a tag (datagram.h) instead of the checksum. Alike at both ends.
  bool authenticates = false;
  // Between processes of one host. Zero: as otherwise.
  Bandwidth host_bandwidth;
  Bytes piece;  // as SenderOptions::piece, at most
  // An acknowledgement for so many packets, or for what came within such a share of a round trip.
  // 1: for what came in a turn.
  int ack_every = 1;
  absl::Duration connect_timeout;  // for the first datagram to come back
  JobSecret secret{};
  const Clock* clock = nullptr;  // null: the system's
};

class Wire final : public PollHandler, private DatagramOwner, private MessageSink {
 public:
  Wire(Poller& poller, const OpenPaths& open, const WireOptions& options, bool is_connector,
       WireOwner& owner);
  ~Wire() override;

  // What the other end needs to know. Once.
  absl::StatusOr<std::string> OwnAddress();
  // With what the other end has told: its address, and later words of its paths.
  // kInvalidArgument: that makes no sense.
  absl::Status Connect(absl::string_view peer_address);
  void set_secret(const JobSecret& secret) { options_.secret = secret; }  // before Connect()
  bool is_started() const { return sender_ != nullptr; }
  int paths() const { return facts_.paths; }

  // Data: the payload stays in place until OnWireSent(token).
  void SendData(const OutFrame& frame);
  // Anything else; `owned` is its payload. False: no room; OnWireRoom() follows.
  bool HasRoom() const;
  void SendControl(OutFrame frame);

  const Sender* sender() const { return sender_.get(); }  // null before it is started
  absl::Time heard_at() const;                            // InfinitePast: never
  std::vector<LaneReport> Lanes() const;     // of what is sent; none before it is started
  void AddTo(FlowCounters* counters) const;  // repeats, and the longest round trip of a path
  // Messages of control up to the last that the peer must have (clear-to-sends need not be), and
  // how many of the peer's have come.
  uint64_t control_promised() const { return control_wanted_; }
  uint64_t control_delivered() const { return control_expected_ - 1; }

  // No byte of the owner's memory is read or written afterwards, and the owner is not called.
  void Close();
  // Likewise, but what was promised is still delivered; is_over() once it is, or cannot be.
  void Linger();
  bool is_over() const { return is_closed_ || control_wanted_ < OldestControl(); }

  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override;

 private:
  // A message that is arriving.
  struct Incoming {
    FrameHeader header;    // of data
    PayloadTarget target;  // likewise
    uint64_t control = 0;  // else its number,
    std::string bytes;     // and itself
  };

  const Key& key() const override { return receive_key_; }
  std::byte* PlaceFor(const ChunkAddress& chunk, size_t bytes) override;
  void OnDatagram(const Received& datagram) override;
  void OnWritable() override { WantTurn(); }
  bool OnMessage(const Packet& packet) override;
  void OnChunk(const Packet& packet, const std::byte* chunk, uint32_t bytes) override;

  void Agree(const Address& peer);
  void Open(absl::Time now);
  void PostWaiting();
  void PostControl();
  bool Transmit();
  void JoinAcknowledgement(absl::Time now);
  void Write(Packet& packet, absl::Span<const std::byte> chunk);
  absl::Status Read(const Received& datagram, Packet& packet) const;
  bool TakeArrivals();
  void TakeControl();
  absl::Status TakeFrames(absl::string_view bytes);
  bool TakeSent();
  void Fail(const absl::Status& why);
  void ArmDeadline();
  uint64_t OldestControl() const {
    return control_sent_.empty() ? control_next_ : control_sent_.begin()->first;
  }

  WireOptions options_;
  const bool is_connector_;
  WireOwner* owner_;  // null: lingering
  LinkNonce nonce_;
  Key send_key_{}, receive_key_{};
  ChunkKey send_chunk_key_{}, receive_chunk_key_{};
  uint32_t peer_link_ = 0;
  std::unique_ptr<LinkPaths> paths_;  // null: closed
  LinkPaths::Facts facts_;            // paths 0: the peer has not told
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Receiver> receiver_;
  bool is_closed_ = false;
  absl::Status failure_;
  absl::Time give_up_at_ = absl::InfiniteFuture();
  bool is_lingering_ = false;
  absl::Time linger_until_ = absl::InfiniteFuture();

  std::deque<OutFrame> data_waiting_, control_waiting_;  // for room in the sender
  uint64_t control_next_ = 1;                            // the number of the next message
  uint64_t control_wanted_ = 0;
  std::map<uint64_t, std::string> control_sent_;  // by number; not acknowledged yet

  std::unordered_map<uint64_t, Incoming> incoming_;  // by message
  uint64_t control_expected_ = 1;
  std::map<uint64_t, std::string> control_ready_;  // by number; some before it are missing

  std::string scratch_;
  Packet packet_, answer_;
  Outgoing outgoing_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_WIRE_H_
