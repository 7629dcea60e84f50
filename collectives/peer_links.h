// The links to the other processes of the job: the transports that they are made on, which peers
// are gone, and the notices that wait to be posted.
//
// A link to a peer is made when the first call that sends to it begins; one from it comes when the
// peer makes it. When one of them breaks, the peer is gone: no link to it is made until Revive().
// Both break at once where a process dies; a peer that has finished closes its links one after the
// other, and what it sent last may still be on its way (IsParting).
//
// Used by the thread that drives the endpoint, and nobody else; Open() and Use() come before that.
#ifndef WEFT_COLLECTIVES_PEER_LINKS_H_
#define WEFT_COLLECTIVES_PEER_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "collectives/endpoint.h"
#include "collectives/peers.h"
#include "collectives/rejoin.h"
#include "net/transport.h"

namespace weft::collectives {

class PeerLinks final : private net::TransportEvents {
 public:
  // `look_up`: asks for the address of a rank, which is then given to its Peer; called once a rank.
  // `wants`: net::TransportEvents::Wants().
  PeerLinks(std::function<void(Rank)> look_up, std::function<bool(uint64_t tag)> wants)
      : look_up_(std::move(look_up)), wants_(std::move(wants)) {}
  // Opens what the setting "transport" names, unless the job has one rank.
  absl::Status Open(const RejoinableOptions& options);
  // Says which transport reaches a rank; closes one that reaches nobody, but where ranks are
  // replaced, for one may come on another host.
  void Use(absl::FunctionRef<int(Rank)> transport_of);
  // All links, then their transports; Peers end.
  void Close();

  // By rank of the job; they stay where they are.
  std::vector<Peer>& peers() { return peers_; }
  Peer& of(Rank rank) { return peers_[rank.index()]; }
  // By index; null: not open.
  absl::Span<const std::unique_ptr<net::Transport>> transports() const { return transports_; }
  net::Transport& transport(int index) const { return *transports_[index]; }

  // Moves bytes, and learns of links and notices. True if anything moved.
  bool Progress(int64_t now_ns);
  // Wakes those of net::SendLink::WakePeer(), as Progress() does, too.
  void WakePeers();
  bool PrepareWait();
  void FinishWait();
  int64_t NextDeadline() const;

  // Makes the link where there is none; null: the peer is gone, or its address is not known yet.
  net::SendLink* SendTo(Peer& peer, int64_t now_ns);
  // Posts the notice when FlushNotices() finds room; drops it where the peer is gone.
  void Notify(Peer& peer, std::string notice);
  bool FlushNotices(int64_t now_ns);  // true if any was posted
  bool notices_waiting() const { return notices_waiting_; }
  // Notices that came since the last time, in their order.
  std::vector<std::pair<Rank, std::string>> TakeHeard() { return std::exchange(heard_, {}); }

  void MarkGone(Peer& peer, absl::Status why, int64_t now_ns);
  // Whether what the peer, which is gone, sent before it went may yet come.
  static bool IsParting(const Peer& peer, int64_t now_ns);
  // Peers that went since the last time, and from which nothing comes any more.
  std::vector<Peer*> TakeDeparted(int64_t now_ns);
  // As if it had never been gone.
  void Revive(Peer& peer);

  // ---- For people and records.
  // "rank 0 -> 1: shm ...": a line a link, and one a peer that is gone.
  std::string Describe() const;
  std::vector<Endpoint::LinkCounters> Counters() const;
  Rejoinable::LinkTotals made() const { return made_; }

 private:
  // ---- TransportEvents, from within Progress().
  void OnAccepted(std::unique_ptr<net::ReceiveLink> link) override;
  void OnNotice(net::Link& link, absl::string_view bytes) override;
  void OnBroken(net::Link& link, const absl::Status& status) override;
  bool Wants(uint64_t tag) override { return wants_(tag); }

  const std::function<void(Rank)> look_up_;
  const std::function<bool(uint64_t)> wants_;
  Rank self_;
  bool rejoins_ = false;
  int64_t now_ns_ = 0;                                          // of the last Progress()
  std::unique_ptr<net::Transport> transports_[kTransportsMax];  // links go before them
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<net::Link>> closed_;  // to be destroyed, after Progress()
  std::vector<std::pair<Rank, std::string>> heard_;
  std::vector<Peer*> parting_;  // gone, and not among TakeDeparted() yet
  bool notices_waiting_ = false;
  Rejoinable::LinkTotals made_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PEER_LINKS_H_
