// Who belongs to a group, and until when: joining, leaving with a goodbye, peers whose links broke,
// and the survivors' way to each other after a failure.
//
// A rank that leaves a group says by a goodbye how many of its collectives it has called, and it
// has finished all of them: what a later call of another rank needs of it has been sent. A rank
// whose link broke without one has departed, and the next call that it has not taken part in fails.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/notice.h"
#include "collectives/short_name.h"

namespace weft::collectives {
namespace {

// Turns of the transports in which a connection whose other end is closed has been accepted, read
// and found closed: several times what any handshake needs.
constexpr int kHandshakeSteps = 64;

}  // namespace

// ---- For communicators

absl::Status EndpointImpl::Join(const std::shared_ptr<Group>& group) {
  recorder_.OnGroup(*group);
  group->peers.clear();
  for (Rank rank : group->ranks) {
    group->peers.push_back(rank == options_.rank ? nullptr : &links_.of(rank));
  }
  if (options_.rejoins) group->posted = std::make_unique<PostedMessages>();
  if (const uint64_t bytes = MulticastBytes(group->ranks); bytes > 0) {
    group->rings =
        std::make_unique<MulticastRings>(static_cast<int>(group->ranks.size()), group->rank, bytes);
  }
  return groups_.Add(group);
}

uint64_t EndpointImpl::MulticastBytes(absl::Span<const Rank> ranks) const {
  if (ranks.size() < 2) return 0;
  const auto shares_memory = [this](Rank rank) {
    if (rank == options_.rank) return true;
    const auto& transport = links_.transports()[static_cast<size_t>(directory_.transport(rank))];
    return transport != nullptr && transport->kind() == net::TransportKind::kShm;
  };
  const bool all = std::all_of(ranks.begin(), ranks.end(), shares_memory);
  return all ? static_cast<uint64_t>(options_.settings.ByteCount("shm.multicast_max").count()) : 0;
}

bool EndpointImpl::IsActive(const Group& group) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](const auto& operation) { return &operation->group() == &group; });
}

void EndpointImpl::Leave(const std::shared_ptr<Group>& group) {
  bool unfinished = false;
  driver_.Run([&] {
    unfinished = IsActive(*group);
    if (!unfinished) return SayGoodbye(*group);
    FailGroup(*group,
              absl::CancelledError(
                  absl::StrCat("rank ", rank().value(), " destroyed it with works unfinished")),
              now_ns_, absl::ZeroDuration());
  });
  while (unfinished && options_.rejoins) {  // until its links are drained (drain.h), or closed
    driver_.Run([&] { unfinished = IsActive(*group); });
    if (unfinished) poll(nullptr, 0, 1);
  }
  if (unfinished) EndWorks(*group);
  driver_.Run([&] {
    if (options_.rejoins) {
      group->rings.reset();  // no call is left that uses them
      left_groups_[group->id] = group;
    }
    groups_.Remove(*group);
  });
}

void EndpointImpl::EndWorks(Group& group) {
  bool unfinished = true;
  while (unfinished) {
    driver_.Run([&] {
      now_ns_ = std::max(now_ns_, SystemClock::Nanoseconds());
      links_.Progress(now_ns_);
      links_.FlushNotices(now_ns_);
      for (auto& operation : active_) {
        if (&operation->group() == &group && !operation->verdict.ok()) CloseLinksOf(*operation);
      }
      if (AdvanceAll(now_ns_)) links_.WakePeers();  // of other groups
      unfinished = IsActive(group);
    });
    if (unfinished) poll(nullptr, 0, 1);
  }
}

void EndpointImpl::SayGoodbye(Group& group) {
  uint32_t next = 0;
  {
    std::lock_guard<std::mutex> lock(group.mutex);
    if (!group.status.ok()) return;
    next = group.next_sequence;
  }
  for (Peer* peer : group.peers) {
    const bool linked = peer != nullptr && (peer->send != nullptr || peer->receive != nullptr);
    if (!linked || !peer->gone.ok()) continue;  // it has nothing to mistake for a death
    links_.Notify(*peer, Pack(kGoodbye, group.id, next, 0));
  }
  links_.FlushNotices(now_ns_);
  links_.Progress(now_ns_);
}

void EndpointImpl::HandleGoodbye(Peer& peer, uint32_t group_id, uint32_t next) {
  Group* group = groups_.FindElseLeave(group_id, peer.rank, next);
  if (group == nullptr) return;
  const auto at = std::find(group->peers.begin(), group->peers.end(), &peer);
  if (at == group->peers.end()) return;
  std::lock_guard<std::mutex> lock(group->mutex);
  group->left[static_cast<size_t>(at - group->peers.begin())] = next;
}

// ---- Shrinking

absl::StatusOr<bool> EndpointImpl::MeetSurvivors(Group& group, absl::string_view key,
                                                 const std::vector<int>& kept, bool healthy) {
  const size_t own =
      static_cast<size_t>(std::find(kept.begin(), kept.end(), group.rank) - kept.begin());
  if (kept.size() == 1) return healthy;
  if (options_.store == nullptr) return absl::FailedPreconditionError("there is no store");
  std::string word = healthy ? "healthy" : "failed";
  for (int rank : kept) absl::StrAppend(&word, ",", rank);
  auto words = options_.store->AllGather(
      absl::StrCat(options_.job, "/shrink/", absl::BytesToHexString(key)), static_cast<int>(own),
      static_cast<int>(kept.size()), word, options_.settings.Duration("store.timeout"));
  if (!words.ok()) return Annotate(words.status(), "wait for the other survivors");
  const std::string wanted = word.substr(word.find(','));
  for (size_t i = 0; i < words->size(); ++i) {
    const std::string& other = (*words)[i];
    const size_t comma = other.find(',');
    if (comma == std::string::npos || other.substr(comma) != wanted) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", kept[i], " keeps the ranks ",
                       comma == std::string::npos ? "?" : other.substr(comma + 1), ", but rank ",
                       group.rank, " keeps ", wanted.substr(1)));
    }
    healthy = healthy && other.substr(0, comma) == "healthy";
  }
  return healthy;
}

void EndpointImpl::DropLinks(const std::shared_ptr<Group>& group, const std::vector<int>& kept) {
  driver_.Run([&] {
    FailGroup(*group, absl::UnavailableError("it is shrunk to its survivors"), now_ns_,
              absl::ZeroDuration());
    links_.Progress(now_ns_);
    for (int rank : kept) {
      Peer* peer = group->peers[static_cast<size_t>(rank)];
      if (peer == nullptr) continue;
      peer->gone = absl::UnavailableError(absl::StrCat("links to rank ", peer->rank.value(),
                                                       " were closed: communicator \"", group->name,
                                                       "\" is shrunk"));
      peer->gone_ns = now_ns_;
      peer->notices.clear();
      peer->send.reset();
      peer->receive.reset();
    }
    // The survivors all close their links here: a work's links wait for no notice to leave.
    for (auto& operation : active_) {
      if (&operation->group() == group.get()) operation->cut_ns = now_ns_;
    }
    if (AdvanceAll(now_ns_)) links_.WakePeers();  // what used them fails
  });
  EndWorks(*group);  // works that are left hold links to ranks that are left out
}

void EndpointImpl::Reconcile(const std::shared_ptr<Group>& group, const std::vector<int>& kept) {
  driver_.Run([&] {
    for (int rank : kept) {
      Peer* peer = group->peers[static_cast<size_t>(rank)];
      if (peer != nullptr) links_.Revive(*peer);
    }
  });
}

absl::Status EndpointImpl::PrepareShrink(const std::shared_ptr<Group>& group,
                                         absl::string_view name, const std::vector<int>& kept) {
  bool healthy = true;
  {
    std::lock_guard<std::mutex> lock(group->mutex);
    healthy = group->status.ok() && group->departed.empty();
  }
  const std::string key = ShortName(name);
  WEFT_ASSIGN_OR_RETURN(healthy, MeetSurvivors(*group, key, kept, healthy));
  if (healthy) return absl::OkStatus();
  // Nobody makes a link to a survivor before all of them have closed their old ones, and those that
  // were on their way have arrived: no late end of one is taken for a death.
  DropLinks(group, kept);
  WEFT_RETURN_IF_ERROR(MeetSurvivors(*group, absl::StrCat(key, "/closed"), kept, false).status());
  driver_.Run([&] {
    // As all their ends are closed, no step of a handshake waits for anything.
    for (int step = 0; step < kHandshakeSteps; ++step) links_.Progress(now_ns_);
    for (int rank : kept) {
      Peer* peer = group->peers[static_cast<size_t>(rank)];
      if (peer != nullptr) peer->receive.reset();
    }
  });
  WEFT_RETURN_IF_ERROR(MeetSurvivors(*group, absl::StrCat(key, "/drained"), kept, false).status());
  Reconcile(group, kept);
  return absl::OkStatus();
}

// ---- Ranks that are replaced

absl::Status EndpointImpl::Forget(const std::vector<int>& replaced) {
  for (const int rank : replaced) {
    if (rank >= 0 && rank < options_.world_size) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " of ", options_.world_size, " is not there to be replaced"));
  }
  const auto& network = links_.transports()[1];
  if (network != nullptr && network->kind() == net::TransportKind::kVerbs) {
    return absl::FailedPreconditionError(
        "over verbs small messages are sent ahead of their receive, and links keep them");
  }
  bool is_busy = true;
  std::vector<int> lost;
  const int64_t limit_ns = SystemClock::Nanoseconds() + kDrainNs;
  while (is_busy && SystemClock::Nanoseconds() < limit_ns) {
    driver_.Run([&] {
      for (const int rank : replaced) {
        Peer& peer = links_.of(Rank(rank));
        if (peer.rank == options_.rank) continue;
        peer.send.reset();
        peer.receive.reset();
        fillers_.Drop(peer);
        peer.notices.clear();
        peer.address.clear();
        peer.sought = false;
        links_.Revive(peer);
      }
      lost.clear();
      for (const Peer& peer : links_.peers()) {
        if (!peer.gone.ok()) lost.push_back(peer.rank.value());
      }
      is_busy = !active_.empty() || !fillers_.empty();
    });
    if (is_busy) poll(nullptr, 0, 1);
  }
  if (!lost.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a link to rank ", lost[0], " is lost: ", links_.of(Rank(lost[0])).gone.message()));
  }
  if (is_busy) return absl::FailedPreconditionError("links to other ranks are still in use");
  return absl::OkStatus();
}

absl::Status EndpointImpl::Rejoin(const Rejoining& rejoining) {
  WEFT_ASSIGN_OR_RETURN(const RankDirectory::Addresses addresses,
                        directory_.TakeReplaced(options_, rejoining));
  driver_.Run([&] {
    for (const auto& [rank, address] : addresses) {
      links_.of(rank).address = address;
      links_.of(rank).transport = directory_.transport(rank);
    }
    left_groups_.clear();
    fillers_.BeginEpoch();
  });
  epoch_ = rejoining.epoch;
  return absl::OkStatus();
}

}  // namespace weft::collectives
