// What carries the data of a link where its sockets do not: UCX, queue pairs, packets on many
// paths. A link is a session (link_session.h: sockets, handshake, ordered control, the end),
// matching (send_matching.h, receive_matching.h), and one of these; none where the sockets carry
// the data.
//
//   SendDataPath      takes pieces of matched sends from the matching, and hands it clear-to-sends
//   ReceiveDataPath   sends clear-to-sends, and hands the matching the pieces that come
//
// It is made with its link, which owns it, and may use the session and the matching as long as it
// lives.
#ifndef WEFT_NET_TCP_DATA_PATH_H_
#define WEFT_NET_TCP_DATA_PATH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/tcp/frame.h"
#include "net/tcp/stream.h"
#include "net/transport.h"

namespace weft::net {

class DataPath {
 public:
  virtual ~DataPath() = default;

  // The session's sockets stand, by which both sides tell each other how they are reached. An error
  // breaks the link.
  virtual absl::Status Start() = 0;
  // As StreamOwner's, of the frames on the session's sockets that are not the session's own.
  virtual absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) = 0;
  virtual absl::Status OnFrameDone(const FrameHeader& header) = 0;

  // ---- Control and notices.
  // Which types go this way. Those wait for SendControl(), which takes a frame or returns false
  // while it has no room; the session's WantTurn() has it asked again.
  virtual bool Carries(FrameType /*type*/) const { return false; }
  virtual bool SendControl(OutFrame& /*frame*/) { return false; }

  // ---- Life and death.
  // The other side lives, whatever its kernel says of the sockets. Asked every quarter of
  // tcp.dead_after.
  virtual bool HearsPeer(absl::Time /*now*/) { return false; }
  // Not OK: why the link ends, which is about to be said; then a socket that the other side closes
  // meanwhile is no news.
  virtual absl::Status failure() const { return absl::OkStatus(); }

  // ---- The end in good order.
  // How many frames have gone this way that the other side should wait for when it is told goodbye;
  // and of what the other side promised so, whether something is still to come. Each arrival is
  // followed by the session's NoteArrival().
  virtual uint64_t promised() const { return 0; }
  virtual bool StillArriving(uint64_t /*promised*/) const { return false; }
  // Something has arrived that a receive may yet be posted for.
  virtual bool AwaitsReceives() const { return false; }
  virtual void Leave() {}  // the link is being destroyed: what is left of control goes by itself
  // No byte of the requests' memory is read or written afterwards. May come more than once.
  virtual void Close(const absl::Status& why) = 0;

  // ---- For people, as Link's.
  virtual std::string Describe() const { return ""; }
  virtual std::vector<LaneReport> Lanes() const { return {}; }
  virtual void AddTo(FlowCounters* /*counters*/) const {}
};

class SendDataPath : public DataPath {
 public:
  virtual void UseIdentity(const ConnectorIdentity& /*identity*/) {}  // before Start()
  // Takes what it has room for from the matching; in the session's turn.
  virtual void SendData() = 0;
  // Whether sends are posted here instead of at the matching. Does not change.
  virtual bool TakesPosts() const { return false; }
  virtual Posted PostSend(const MessageKey& /*key*/, const SendSource& /*source*/,
                          Request* /*request*/) {
    return Posted::kNotYet;
  }
};

class ReceiveDataPath : public DataPath {
 public:
  virtual void SendClearToSend(const FrameHeader& header) = 0;
  virtual void DropUnwanted() {}  // as ReceiveLink's
  // As ReceiveLink's.
  virtual void Flush(const RegionView& /*where*/, Request* request) {
    request->Begin();
    request->Finish(absl::OkStatus(), 0);
  }
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_DATA_PATH_H_
