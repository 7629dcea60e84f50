#include "collectives/peer_links.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// When the link to a peer that has finished is broken, the one from it is read until it breaks too,
// but for no longer than this.
constexpr int64_t kPartingNs = 2'000'000'000;

}  // namespace

absl::Status PeerLinks::Open(const RejoinableOptions& options) {
  self_ = options.rank;
  rejoins_ = options.rejoins;
  peers_.resize(static_cast<size_t>(options.world_size));
  for (int r = 0; r < options.world_size; ++r) peers_[static_cast<size_t>(r)].rank = Rank(r);
  if (options.world_size == 1) return absl::OkStatus();
  const std::string& wanted = options.settings.Text("transport");
  const std::pair<net::TransportKind, const char*> kinds[kTransportsMax] = {
      {net::TransportKind::kShm, "shm"},
      wanted == "ucx"         ? std::pair(net::TransportKind::kUcx, "ucx")
      : wanted == "verbs"     ? std::pair(net::TransportKind::kVerbs, "verbs")
      : wanted == "multipath" ? std::pair(net::TransportKind::kMultipath, "multipath")
                              : std::pair(net::TransportKind::kTcp, "tcp")};
  for (int t = 0; t < kTransportsMax; ++t) {
    if (wanted != "auto" && wanted != kinds[t].second) continue;
    net::TransportOptions own;
    own.self = options.rank;
    own.world_size = options.world_size;
    own.secret = options.secret;
    own.events = this;
    own.settings = options.settings;
    if (rejoins_) {
      // Links outlive what was done over them (drain.h): nothing of it may wait in them.
      WEFT_RETURN_IF_ERROR(own.settings.Set("shm.eager_max", "0", "ranks that are replaced"));
    }
    own.peers_listen = true;  // before their records say where
    WEFT_ASSIGN_OR_RETURN(transports_[t], net::CreateTransport(kinds[t].first, own));
  }
  return absl::OkStatus();
}

void PeerLinks::Use(absl::FunctionRef<int(Rank)> transport_of) {
  bool used[kTransportsMax] = {};
  for (Peer& peer : peers_) {
    if (peer.rank == self_) continue;
    peer.transport = transport_of(peer.rank);
    used[peer.transport] = true;
  }
  for (int t = 0; t < kTransportsMax; ++t) {
    if (!used[t] && !rejoins_) transports_[t].reset();
  }
}

void PeerLinks::Close() {
  closed_.clear();
  peers_.clear();
  for (auto& transport : transports_) transport.reset();
}

// ---- Turns

bool PeerLinks::Progress(int64_t now_ns) {
  now_ns_ = now_ns;
  bool moved = false;
  for (auto& transport : transports_) {
    if (transport != nullptr && transport->Progress(absl::FromUnixNanos(now_ns))) moved = true;
  }
  closed_.clear();
  return moved;
}

bool PeerLinks::PrepareWait() {
  bool quiet = true;
  for (auto& transport : transports_) {
    if (transport != nullptr && !transport->PrepareWait()) quiet = false;
  }
  return quiet;
}

void PeerLinks::WakePeers() {
  for (auto& transport : transports_) {
    if (transport != nullptr) transport->WakePeers();
  }
}

void PeerLinks::FinishWait() {
  for (auto& transport : transports_) {
    if (transport != nullptr) transport->FinishWait();
  }
}

int64_t PeerLinks::NextDeadline() const {
  int64_t deadline = INT64_MAX;
  for (const auto& transport : transports_) {
    if (transport == nullptr) continue;
    const absl::Time next = transport->NextDeadline();
    if (next < absl::InfiniteFuture()) deadline = std::min(deadline, absl::ToUnixNanos(next));
  }
  return deadline;
}

net::SendLink* PeerLinks::SendTo(Peer& peer, int64_t now_ns) {
  if (peer.send == nullptr && peer.gone.ok()) {
    if (peer.address.empty()) {
      if (!std::exchange(peer.sought, true)) look_up_(peer.rank);
      return nullptr;
    }
    ++made_.opened;
    peer.send =
        transports_[peer.transport]->Connect(peer.address, peer.rank, absl::FromUnixNanos(now_ns));
  }
  return peer.send.get();
}

// ---- Notices

void PeerLinks::Notify(Peer& peer, std::string notice) {
  if (!peer.gone.ok()) return;
  peer.notices.push_back(std::move(notice));
  notices_waiting_ = true;
}

bool PeerLinks::FlushNotices(int64_t now_ns) {
  bool moved = false;
  notices_waiting_ = false;
  for (Peer& peer : peers_) {
    while (!peer.notices.empty()) {
      if (!peer.gone.ok()) {
        peer.notices.clear();
        break;
      }
      net::Link* link = peer.send.get();
      if (link == nullptr) link = peer.receive.get();
      if (link == nullptr) link = SendTo(peer, now_ns);
      if (link == nullptr || link->PostNotice(peer.notices.front()) == net::Posted::kNotYet) {
        notices_waiting_ = true;
        break;
      }
      peer.notices.pop_front();
      moved = true;
    }
  }
  return moved;
}

void PeerLinks::OnNotice(net::Link& link, absl::string_view bytes) {
  heard_.emplace_back(link.peer(), std::string(bytes));
}

// ---- Who comes and goes

void PeerLinks::OnAccepted(std::unique_ptr<net::ReceiveLink> link) {
  Peer& peer = of(link->peer());
  ++made_.accepted;
  if (peer.receive != nullptr) closed_.push_back(std::move(peer.receive));
  peer.receive = std::move(link);
}

void PeerLinks::OnBroken(net::Link& link, const absl::Status& status) {
  Peer& peer = of(link.peer());
  const bool current = &link == peer.send.get() || &link == peer.receive.get();
  if (!current || !peer.gone.ok()) return;
  const absl::Status gone =
      WithFailure(absl::UnavailableError(
                      absl::StrCat("rank ", peer.rank.value(), " is gone: ", status.message())),
                  FailureOf(status));
  // A device is one of this host's, whoever is at the other end of the link.
  const bool is_own = FailureOf(status).scope == FailureScope::kDevice;
  const Rank failed = is_own ? self_ : peer.rank;
  MarkGone(peer, WithFailure(gone, {.scope = FailureScope::kConnection, .rank = failed.value()}),
           now_ns_);
}

void PeerLinks::MarkGone(Peer& peer, absl::Status why, int64_t now_ns) {
  peer.gone = std::move(why);
  peer.gone_ns = now_ns;
  WEFT_LOG_DEBUG(peer.gone.message());
  parting_.push_back(&peer);
}

bool PeerLinks::IsParting(const Peer& peer, int64_t now_ns) {
  return peer.receive != nullptr && peer.receive->status().ok() &&
         now_ns < peer.gone_ns + kPartingNs;
}

std::vector<Peer*> PeerLinks::TakeDeparted(int64_t now_ns) {
  if (parting_.empty()) return {};
  const auto end_of_parting = std::stable_partition(
      parting_.begin(), parting_.end(), [&](const Peer* peer) { return IsParting(*peer, now_ns); });
  std::vector<Peer*> departed(end_of_parting, parting_.end());
  parting_.erase(end_of_parting, parting_.end());
  return departed;
}

void PeerLinks::Revive(Peer& peer) {
  std::erase(parting_, &peer);
  peer.gone = absl::OkStatus();
  peer.gone_ns = 0;
  peer.send_full_turn = peer.receive_full_turn = 0;
}

// ---- For people and records

std::string PeerLinks::Describe() const {
  std::string text;
  for (const Peer& peer : peers_) {
    for (const net::Link* link : {static_cast<const net::Link*>(peer.send.get()),
                                  static_cast<const net::Link*>(peer.receive.get())}) {
      if (link == nullptr) continue;
      const bool sends = link == peer.send.get();
      absl::StrAppend(&text, "rank ", (sends ? self_ : peer.rank).value(), " -> ",
                      (sends ? peer.rank : self_).value(), ": ", link->Describe(), "\n");
    }
    if (!peer.gone.ok()) {
      absl::StrAppend(&text, "rank ", peer.rank.value(), ": ", peer.gone.message(), "\n");
    }
  }
  return text;
}

std::vector<Endpoint::LinkCounters> PeerLinks::Counters() const {
  std::vector<Endpoint::LinkCounters> out;
  for (const Peer& peer : peers_) {
    if (peer.send != nullptr) out.push_back({peer.rank, true, peer.send->Counters()});
    if (peer.receive != nullptr) out.push_back({peer.rank, false, peer.receive->Counters()});
  }
  return out;
}

}  // namespace weft::collectives
