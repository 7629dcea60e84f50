// What both ends of a link over a session are alike. Internal; used by send_link.h and
// receive_link.h.
#ifndef WEFT_NET_TCP_SESSION_LINK_H_
#define WEFT_NET_TCP_SESSION_LINK_H_

#include <string>
#include <vector>

#include "net/tcp/link_session.h"

namespace weft::net {

// `End` is SendLink with SendMatching, or ReceiveLink with ReceiveMatching.
template <typename End, typename Matching>
class SessionLink : public End {
 public:
  void TakeArrivals(absl::Time now) { session_.TakeArrivals(now); }

  Rank peer() const override { return session_.peer(); }
  const absl::Status& status() const override { return session_.status(); }
  Posted PostNotice(absl::string_view bytes) override { return session_.QueueNotice(bytes); }
  bool HoldsNotices() const override { return session_.HoldsNotices(); }
  void Break(const absl::Status& why) override { session_.Break(why); }
  std::string Describe() const override { return session_.Describe(); }
  std::vector<LaneReport> Lanes() const override { return session_.Lanes(); }
  FlowCounters Counters() const override { return session_.WithLanes(this->counters_); }
  void NamePeer(absl::string_view name) override { session_.NamePeer(name); }

 protected:
  SessionLink(TcpContext& context, Rank peer)
      : context_(context),
        matching_(context.options.self, peer, context.requests_max, this->counters_),
        session_(context, peer, *this, matching_) {}

  // True where the link has ended: then `request` has as well, for the same reason.
  bool Refuses(Request* request) {
    if (status().ok()) return false;
    request->Begin();
    request->Finish(status(), 0);
    return true;
  }

  TcpContext& context_;
  Matching matching_;
  LinkSession session_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SESSION_LINK_H_
