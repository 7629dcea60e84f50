#include "collectives/drain.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "collectives/endpoint_impl.h"
#include "collectives/notice.h"

namespace weft::collectives {
namespace {

// A check that no call has but by a chance of 1 in 2^64.
constexpr uint64_t kFillerCheck = 0x66696c6c65722121;  // "filler!!"

// The upper end of transport.requests: no honest peer has posted more.
constexpr int32_t kFillersMax = 1 << 20;

}  // namespace

std::string PostedCount::ToText() const { return absl::StrCat(sends, " ", receives); }

bool PostedCount::FromText(absl::string_view text, PostedCount* out) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, ' ');
  return absl::SimpleAtoi(parts.first, &out->sends) &&
         absl::SimpleAtoi(parts.second, &out->receives);
}

void FinishedCalls::Add(uint32_t sequence) {
  later_.insert(sequence);
  while (!later_.empty() && *later_.begin() == next_) {
    later_.erase(later_.begin());
    ++next_;
  }
}

void Fillers::Match(Peer& peer, uint64_t tag, PostedCount theirs, PostedCount mine) {
  PostedCount& filled = filled_[{tag, peer.rank}];
  // Signed, as there may be more of this side's, for which it asks the peer itself.
  const auto sends = static_cast<int32_t>(theirs.receives - mine.sends - filled.sends);
  const auto receives = static_cast<int32_t>(theirs.sends - mine.receives - filled.receives);
  if (sends > kFillersMax || receives > kFillersMax) return;  // it closes the link after kDrainNs
  for (int32_t i = 0; i < sends; ++i) under_way_.push_back({&peer, true, tag});
  for (int32_t i = 0; i < receives; ++i) under_way_.push_back({&peer, false, tag});
  filled.sends += static_cast<uint32_t>(std::max(sends, 0));
  filled.receives += static_cast<uint32_t>(std::max(receives, 0));
}

bool Fillers::Post() {
  bool moved = false;
  for (Filler& filler : under_way_) {
    if (filler.is_posted || !filler.peer->gone.ok()) continue;
    const net::MessageKey key{filler.tag, kFillerCheck};
    net::Posted posted = net::Posted::kNotYet;
    if (filler.sends && filler.peer->send != nullptr) {
      posted = filler.peer->send->PostSend(key, net::RegionView(), filler.request.get());
    } else if (!filler.sends && filler.peer->receive != nullptr) {
      posted = filler.peer->receive->PostReceive(key, {}, filler.request.get());
    }
    filler.is_posted = posted == net::Posted::kAccepted;
    moved |= filler.is_posted;
  }
  const size_t before = under_way_.size();
  under_way_.erase(std::remove_if(under_way_.begin(), under_way_.end(),
                                  [](const Filler& filler) {
                                    return filler.is_posted ? filler.request->done()
                                                            : !filler.peer->gone.ok();
                                  }),
                   under_way_.end());
  return moved || under_way_.size() < before;
}

void Fillers::Drop(const Peer& peer) {
  std::erase_if(under_way_, [&](const Filler& filler) { return filler.peer == &peer; });
}

// ---- The endpoint's part; by the driver.

void EndpointImpl::KeepAccount(Operation& operation) {
  if (!operation.has_sequence() || !operation.has_begun) return;
  Group& group = operation.group();
  if (operation.complete()) return group.finished.Add(operation.sequence());
  for (size_t r = 0; r < group.peers.size(); ++r) {
    const PostedCount count = operation.Posted(static_cast<int>(r));
    if (count.sends == 0 && count.receives == 0) continue;
    group.given_up[{operation.sequence(), static_cast<int>(r)}] = count;
  }
}

void EndpointImpl::AskToDrain(const Group& group) {
  for (const auto& operation : active_) {
    if (operation == nullptr || &operation->group() != &group || !operation->has_begun) continue;
    if (operation->complete()) continue;
    const bool is_message = !operation->has_sequence();
    const uint32_t number = is_message ? operation->tag() : operation->sequence();
    for (size_t r = 0; r < group.peers.size(); ++r) {
      Peer* peer = group.peers[r];
      if (peer == nullptr || !operation->Holds(static_cast<int>(r))) continue;
      links_.Notify(*peer, Pack(kDrain, group.id, number, is_message ? 1 : 0,
                                operation->Posted(static_cast<int>(r)).ToText()));
    }
  }
  links_.FlushNotices(now_ns_);
}

std::optional<PostedCount> EndpointImpl::PostedWith(Group& group, const Peer& peer, uint32_t number,
                                                    bool is_message) {
  const auto at = std::find(group.peers.begin(), group.peers.end(), &peer);
  if (at == group.peers.end()) return PostedCount();
  const int rank = static_cast<int>(at - group.peers.begin());
  if (is_message) return group.posted->Of(rank, number);
  if (group.finished.Has(number)) return std::nullopt;
  for (const auto& operation : active_) {
    if (&operation->group() == &group && operation->has_sequence() &&
        operation->sequence() == number) {
      return operation->has_begun ? operation->Posted(rank) : PostedCount();
    }
  }
  const auto given_up = group.given_up.find({number, rank});
  return given_up == group.given_up.end() ? PostedCount() : given_up->second;
}

void EndpointImpl::HandleDrain(Peer& peer, uint32_t group_id, uint32_t number, bool is_message,
                               absl::string_view text) {
  PostedCount theirs;
  if (!options_.rejoins || !PostedCount::FromText(text, &theirs)) return;
  const absl::Status reason = absl::CancelledError(
      absl::StrCat("rank ", peer.rank.value(), " has given up what it was doing in it"));
  const auto left = left_groups_.find(group_id);
  Group* group = groups_.Find(group_id);
  if (group == nullptr && left != left_groups_.end()) {
    group = left->second.get();
  } else if (group = groups_.FindElseFail(group_id, reason); group != nullptr) {
    // Nothing more is posted here.
    FailGroup(*group, reason, now_ns_, absl::Milliseconds(100), &peer);
  }
  std::optional<PostedCount> mine = PostedCount();
  if (group != nullptr) mine = PostedWith(*group, peer, number, is_message);
  if (!mine.has_value()) return;
  fillers_.Match(peer, LinkTag(group_id, number, is_message), theirs, *mine);
  fillers_.Post();
}

}  // namespace weft::collectives
