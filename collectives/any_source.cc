// The endpoint's part of receives from any rank; by the driver.
#include "collectives/any_source.h"

#include <algorithm>

#include "collectives/endpoint_impl.h"
#include "collectives/notice.h"

namespace weft::collectives {

void EndpointImpl::Seek(Group& group, int peer, uint32_t tag) {
  links_.Notify(*group.peers[static_cast<size_t>(peer)],
                Pack(kSeek, group.id, tag, group.any_source.received(peer, tag)));
}

void EndpointImpl::Offer(Group& group, int peer, uint32_t tag, uint32_t known) {
  links_.Notify(*group.peers[static_cast<size_t>(peer)], Pack(kOffer, group.id, tag, known));
}

void EndpointImpl::HandleAnySource(Peer& from, bool offer, uint32_t group_id, uint32_t tag,
                                   uint32_t known) {
  Group* group = groups_.Find(group_id);
  if (group == nullptr) return;  // not made yet here: who seeks, seeks again
  const auto at = std::find(group->peers.begin(), group->peers.end(), &from);
  if (at == group->peers.end()) return;
  const int peer = static_cast<int>(at - group->peers.begin());
  if (!offer) {
    if (group->any_source.Sought(peer, tag, known)) Offer(*group, peer, tag, known);
    return;
  }
  bool fits = known == group->any_source.received(peer, tag);
  for (auto& operation : active_) {
    if (&operation->group() != group || operation->open_tag() != tag) continue;
    if (!operation->verdict.ok()) continue;
    if (!fits) return Seek(*group, peer, tag);
    operation->Choose(*this, peer);
    fits = false;  // the next one seeks the message after this
  }
}

}  // namespace weft::collectives
