// The session of a link, alike at both ends and whatever carries its data: the streams over its
// sockets, control and notices in order, lost sockets, the end. Where it has no data path, its
// streams carry the data as well: pieces of matched sends (send_matching.h) go out, those that come
// go to receive_matching.h. It is driven by its streams' events, by its turn (something to write)
// and by a deadline (see OnDeadline).
//
// A socket that fails is replaced (resumption.h) and its stream goes on where it was (stream.h). A
// socket that the other side's kernel closes in order without a goodbye is not: that process has
// died. That is seen once nobody holds the socket, which processes that it forked do not
// (close_on_fork.h).
#ifndef WEFT_NET_TCP_LINK_SESSION_H_
#define WEFT_NET_TCP_LINK_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/poller.h"
#include "net/handshake.h"
#include "net/tcp/data_path.h"
#include "net/tcp/frame_queue.h"
#include "net/tcp/lingering.h"
#include "net/tcp/path_news.h"
#include "net/tcp/planned_ways.h"
#include "net/tcp/receive_matching.h"
#include "net/tcp/resume_book.h"
#include "net/tcp/resumption.h"
#include "net/tcp/send_matching.h"
#include "net/tcp/source_ports.h"
#include "net/tcp/stream.h"
#include "net/transport.h"

namespace weft::net {

// What every link of one transport shares; the transport owns it and outlives its links.
struct TcpContext {
  TransportOptions options;
  HandshakePurpose purpose = HandshakePurpose::kTcpLink;
  std::string name = "tcp";  // of the transport, for messages
  std::unique_ptr<Poller> poller;
  std::string interface;  // its name, for messages
  SocketTuning tuning;
  int sockets = 1;  // of each link made here whose source ports are not planned
  SourcePorts source_ports;
  PlannedWays ways;  // of sockets that carry data; none where others do
  // Where sockets that carry data connect from: with `ways`, or where tcp.interface names it, so
  // that what a rank sends leaves by its own NIC; else the kernel chooses by its routes.
  SocketAddress own_address;
  bool binds_own_address = false;
  std::unique_ptr<PathNews> path_news;  // with `ways`; made by the first of their links
  uint64_t frame_bytes = 0;             // a multiple of 64
  // Where more waits than all sockets take: frames are up to this many times as large, and that is
  // what a socket is given at a time. Turning from socket to socket has its price.
  uint64_t frame_growth = 4;
  // The book of the listener that accepts replacements for failed sockets; null: sockets are not
  // replaced, on either end.
  std::shared_ptr<ResumeBook> book;
  // Called by the listener's thread when a new socket waits in the book, where that is not the
  // links' own; null: it is.
  std::function<void()> on_arrival;
  // Where this process listens, for peers that probe whether it lives. Empty: nowhere.
  SocketAddress listens_at;
  size_t requests_max = 0;  // of one link
  absl::Duration connect_timeout;
  Lingering lingering;  // sockets of closed links
  // Whether AwaitDelivery() waits for a goodbye alone, which only makes the peer's message better.
  bool await_goodbyes = true;
  // Whether the kernel asks idle connections whether the other side's stands.
  bool keep_alive = true;
  // What both ends of a link must agree upon beyond the handshake's own: said in every Hello of
  // this side, checked by the listener, whose error the connector is told. Empty and null: nothing.
  std::string own_terms;
  std::function<absl::Status(absl::string_view terms)> check_terms;
};

class LinkSession final : public StreamOwner,
                          public ResumptionOwner,
                          public PathFollower,
                          public PollHandler {
 public:
  // The session of `link`, to or from `peer`; context, link and matching outlive the session.
  LinkSession(TcpContext& context, Rank peer, Link& link, SendMatching& sends)
      : PollHandler(*context.poller), context_(context), peer_(peer), link_(link), sends_(&sends) {}
  LinkSession(TcpContext& context, Rank peer, Link& link, ReceiveMatching& receives)
      : PollHandler(*context.poller),
        context_(context),
        peer_(peer),
        link_(link),
        receives_(&receives) {}
  ~LinkSession() override;

  // ---- For the link.
  // Before Attach(); null: the streams carry the data.
  void UsePath(SendDataPath* path) { path_ = send_path_ = path; }
  void UsePath(ReceiveDataPath* path) { path_ = path; }
  // Before Attach(): lost sockets are replaced. Null: they end the link.
  void set_resumption(std::unique_ptr<Resumption> resumption) {
    resumption_ = std::move(resumption);
  }
  void set_description(std::string text) { description_ = std::move(text); }  // until attached
  void Attach(std::vector<FileDescriptor> sockets, std::vector<std::string> received);
  bool attached() const { return !streams_.empty(); }
  // To be called by the link's destructor: cancels, says goodbye, gives the sockets away.
  void Finish();

  Rank peer() const { return peer_; }
  const absl::Status& status() const { return status_; }
  Posted QueueNotice(absl::string_view bytes);
  // Sockets that stand take them along when they close.
  bool HoldsNotices() const { return status_.ok() && !attached() && notices_queued() > 0; }
  std::string Describe() const;
  std::vector<LaneReport> Lanes() const;
  FlowCounters WithLanes(FlowCounters counters) const;  // with what has happened to its lanes
  void NamePeer(absl::string_view name) { peer_name_ = std::string(name); }
  // What TcpContext::on_arrival announced.
  void TakeArrivals(absl::Time now) {
    if (resumption_ != nullptr) resumption_->TakeArrivals(now);
  }

  // ---- For the link and its data path.
  // Completes every request with `why`, closes, and tells the owner once; from inside Progress().
  void Break(const absl::Status& why);
  void QueueControl(const FrameHeader& header, std::string payload = {});
  // Does what a send or a clear-to-send has led to.
  void Follow(SendMatching::Outcome outcome);
  // A send waits for the other side.
  void NoteAwaiting() {
    if (!seeks_silence_) WantTurn();
  }
  TcpContext& context() const { return context_; }
  using PollHandler::poller;
  using PollHandler::WantTurn;
  // Control that waits for the data path.
  std::deque<OutFrame> TakeElsewhere() { return elsewhere_.TakeAll(); }
  void NoteArrival();  // of what StillArriving() may be waited for
  // The other side has closed the link in good order, and StillArriving() is waited for.
  bool ClosedThere() const { return goodbye_seen_ && OpenStreams() == 0; }
  // As TransportEvents::OnMismatch.
  void TellMismatch(const absl::Status& status) {
    context_.options.events->OnMismatch(link_, status);
  }

  // Implements StreamOwner, ResumptionOwner, PathFollower and PollHandler.
  void OnPathNews() override { WantTurn(); }
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnSent(uint32_t token) override { sends_->OnSent(token); }  // of data alone
  void OnWritable() override { WantTurn(); }
  void OnEnded(const absl::Status& why, absl::Time now) override;
  void OnLost(Stream& stream, const absl::Status& why, bool timed_out, absl::Time now) override;
  void OnResumed(Stream& stream, uint64_t again, absl::Time now) override;
  void OnNewSocket(size_t index, uint32_t epoch, FileDescriptor socket, std::string received,
                   absl::Time now) override;
  void OnNotReplaced(size_t index, const absl::Status& why, absl::Time now) override;
  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override;

 private:
  // State of one stream whose socket may be lost.
  struct Loss {
    bool lost = false;  // and not replaced yet
    absl::Time since, give_up;
    std::string why;
    absl::Time told = absl::InfinitePast();  // the log, last
  };

  bool is_sender() const { return sends_ != nullptr; }
  bool HasData() const { return sends_ != nullptr && sends_->HasData(); }
  // Whether a send waits for the other side.
  bool AwaitsPeer() const { return sends_ != nullptr && sends_->outstanding() > 0; }
  uint64_t WriteBytes() const;
  bool Carries(FrameType type) const { return path_ != nullptr && path_->Carries(type); }
  uint64_t promised() const { return path_ != nullptr ? path_->promised() : 0; }
  bool StillArriving() const { return path_ != nullptr && path_->StillArriving(peer_promised_); }
  void FailRequests(const absl::Status& why);
  size_t OpenStreams() const;
  size_t notices_queued() const { return control_.notices() + elsewhere_.notices(); }
  FrameQueue& QueueFor(FrameType type) { return Carries(type) ? elsewhere_ : control_; }
  std::string PeerText() const;  // "rank 3"
  // A message that was marked kTellTaken is whole: the sender waits to hear that it is taken.
  void OweTelling() { owes_telling_ = true, WantTurn(); }
  uint64_t Fill(Stream& stream, bool with_data);
  void TakeNextFirst();
  void TellOfPaths(absl::Time now);
  void LookForDeath(absl::Time now);
  void LookForSilence(absl::Time now);
  void SetDeadlineOfLooks(absl::Time now);
  void Lose(size_t index, const absl::Status& why, absl::Duration silent, absl::Time now);
  void BeginMove(size_t index, absl::Time now);
  void BeginLoss(size_t index, absl::string_view why, absl::Duration patience, absl::Time now);
  size_t IndexOf(const Stream& stream) const;
  std::string SocketText(size_t index) const;  // "socket 1 of 2"
  bool AnyLost() const;
  bool MayDepart() const;
  void Depart(std::deque<OutFrame> last_words, uint64_t promised, bool whole);
  std::deque<OutFrame> TakeLastWords();
  bool OwesTelling() const;
  OutFrame TellTaken();

  TcpContext& context_;
  const Rank peer_;
  Link& link_;
  SendMatching* const sends_ = nullptr;        // at the connecting end,
  ReceiveMatching* const receives_ = nullptr;  // at the accepting one
  DataPath* path_ = nullptr;
  SendDataPath* send_path_ = nullptr;  // the same, at the connecting end
  std::string peer_name_;              // for messages; empty: "rank 3"
  absl::Status status_;
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t data_first_ = 0;       // the stream that data is offered first,
  uint64_t data_on_first_ = 0;  // and the bytes that it has taken since
  std::unique_ptr<Resumption> resumption_;
  std::vector<Loss> losses_;  // by stream
  uint64_t sockets_replaced_ = 0;
  std::vector<uint64_t> told_taken_;  // what a kTaken brings
  bool owes_telling_ = false;
  absl::Time death_look_at_ = absl::InfinitePast();
  bool seeks_silence_ = false;  // LookForSilence() is due every kSilenceLookEvery
  absl::Duration poke_after_;   // of nothing received
  std::string description_;     // once attached
  FrameQueue control_;          // for stream 0, which keeps their order
  FrameQueue elsewhere_;        // for the data path
  uint64_t paths_told_ = 0;     // version of the reports
  bool goodbye_seen_ = false;
  uint64_t peer_promised_ = 0;  // by the goodbye
  bool extended_ = false;       // something came since the deadline was set
  absl::Status ending_;         // why the first stream ended, while others still deliver
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_LINK_SESSION_H_
