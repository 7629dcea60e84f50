// What both ends of a shm link have in common: coming up, notices, the doorbell, breaking.
//
// Each end writes one ring of cells and reads the other: the sender writes the forward ring, the
// receiver the backward one. Threading as transport.h says.
#ifndef WEFT_NET_SHM_ENDPOINT_H_
#define WEFT_NET_SHM_ENDPOINT_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "net/shm/bringup.h"
#include "net/shm/cells.h"
#include "net/shm/ring.h"
#include "net/transport.h"

namespace weft::net {
class ShmTransport;
}

namespace weft::net::shm {

// How much one link may do before the next one's turn.
inline constexpr int kCellsPerTurn = 64;
inline constexpr uint64_t kBytesPerTurn = uint64_t{1} << 20;

class Endpoint : public SocketWatcher {
 public:
  enum class Role : uint8_t { kSender, kReceiver };

  Endpoint(ShmTransport* transport, Role role, Rank peer);
  virtual ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // ---- For the transport.
  bool Turn(absl::Time now);  // true if anything moved
  void OnWatched() override;  // its socket is readable, or its peer's process has exited
  void Arm();                 // what is wanted while asleep; before the fence
  void Disarm();              //
  bool HasWork();             // after the fence
  bool IsComingUp() const { return connecting_ != nullptr; }
  // At the end of the transport's turn, after the fence if any needs it: wakes the other side if it
  // sleeps and waits for what this end has published or given back.
  bool NeedsRing() const { return published_ || released_; }
  void RingAfterFence() {
    Ring();
    published_ = published_loud_ = released_ = false;
  }
  absl::Time deadline() const;
  bool alive() const { return status_.ok(); }
  Rank peer_rank() const { return peer_; }
  Role role() const { return role_; }
  // Completes all requests with `status`, tells the owner. Once; later calls do nothing.
  void Break(const absl::Status& status);
  virtual Link& link() = 0;

 protected:
  // One turn of a link that stands.
  virtual bool Move() = 0;
  // A cell of the other side that is no notice; an error breaks the link.
  virtual absl::Status OnCell(const std::byte* body) = 0;
  virtual void OnUp(const Wire& wire) = 0;
  virtual void FailRequests(const absl::Status& status) = 0;
  // Something waits that Move() could do at once.
  virtual bool CanMove() = 0;
  // Waits for cells or arena that the other side has to give back.
  virtual bool WaitsForSpace() const = 0;
  virtual bool QuietWhenAsleep() const { return false; }
  // Messages that have come whole wait here for their receives, and nothing else is wanted of the
  // other side: once it has closed the link in good order, the link ends when they are taken.
  virtual bool KeepsAfterEnd() const { return false; }
  virtual std::string Doing() const = 0;  // "3 sends were under way"
  // A packet of the link's socket, which is silent otherwise. An error breaks the link.
  virtual absl::Status OnPacket(const Packet& packet);
  // Takes packets that have come, up to so many: what is left is reported again. True: there are no
  // more, and the socket stands.
  static constexpr size_t kPacketsPerTurn = 64;
  bool DrainSocket();

  void StartConnecting(std::unique_ptr<Connecting> connecting);
  void Establish(Wire wire);

  // Reads cells until there are none, or `cells` or kBytesPerTurn are used up.
  bool ReadCells(int cells);
  // After filling writer_.body().
  void PublishCell(bool ring_if_quiet);
  // What the other side must see at once lies beside the ring, or does not fit behind cells that it
  // sleeps over: it is woken to look.
  void Announce() { published_ = published_loud_ = true; }
  // Wakes a peer that is seen to sleep at once, and not at the end of the next turn.
  void RingIfAsleep() {
    if (NeedsRing() && wire_.bell.SeemsAsleep()) Ring();
  }

  Posted QueueNotice(absl::string_view bytes);
  bool notices_queued() const { return !notices_.empty(); }
  // On a broken link: takes the request, to be failed by the next turn; else false.
  bool PostFailed(Request* request);
  void CancelFailed();  // for destructors: the requests that PostFailed took
  absl::Status Violation(absl::string_view what) const;
  // Why a message cannot be received; the other side's number is `theirs`.
  absl::Status CheckDiffers(uint64_t own, uint64_t theirs) const;
  absl::Status IsTooLong(uint64_t bytes, uint64_t capacity) const;
  absl::Status HangUpStatus() const;
  std::string DescribeLink() const;
  const absl::Status& link_status() const { return status_; }
  bool up() const { return up_; }
  void CountBytes(uint64_t bytes) { bytes_this_turn_ += bytes; }
  bool TurnIsUp() const { return bytes_this_turn_ >= kBytesPerTurn; }
  // Before the sender's memory is the caller's again: who still reads there finds the link closed.
  void MarkClosed();
  bool PeerHasClosed() const;
  ShmTransport* transport() const { return transport_; }

  Wire wire_;
  CellWriter writer_;
  CellReader reader_;

 private:
  bool BringUp(absl::Time now);
  void Unwatch();
  void EndWatch();
  bool FlushFailed();
  bool PushNotices();
  void Ring();
  bool HasEnded() const;
  bool NoticeFits() { return writer_.Free(kNoticeCells) >= kNoticeCells; }
  absl::Status TakeNotice(const std::byte* body);
  virtual void OnCellPublished() {}
  ReaderLine* own_reader_line() const;   // of the ring we read
  ReaderLine* peer_reader_line() const;  // of the ring we write
  WriterLine* own_writer_line() const;
  WriterLine* peer_writer_line() const;

  static constexpr uint64_t kNoticeCells =
      (kNoticeBytesMax + NoticeCell::kBytesMax - 1) / NoticeCell::kBytesMax;
  static constexpr size_t kNoticesQueued = 64;

  ShmTransport* transport_;
  Role role_;
  Rank peer_;
  bool up_ = false;
  bool hung_up_ = false;
  bool published_ = false;
  bool published_loud_ = false;
  bool released_ = false;  // cells that were read
  bool armed_space_ = false;
  uint64_t bytes_this_turn_ = 0;
  absl::Status status_;
  absl::Status pending_break_;
  std::unique_ptr<Connecting> connecting_;
  int registered_fd_ = -1;
  std::deque<std::string> notices_;
  std::string notice_in_;
  std::vector<Request*> failed_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_ENDPOINT_H_
