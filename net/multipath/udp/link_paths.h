// The paths of one link to its peer, as its wire uses them: UDP sockets that all links share
// (UdpPaths), or queue pairs of the link's own (net/verbs/pair_paths.h). Packets in, packets out;
// delivery is not known here. Paths that fail may be replaced, for which both ends exchange
// messages over the link's connection (Repair()).
//
// Driven by the transport's poller; not thread-safe.
#ifndef WEFT_NET_MULTIPATH_UDP_LINK_PATHS_H_
#define WEFT_NET_MULTIPATH_UDP_LINK_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"
#include "net/multipath/udp/datagram.h"
#include "net/multipath/udp/sockets.h"
#include "net/paths/path_set.h"
#include "net/tcp/planned_ways.h"

namespace weft::net::multipath {

class LinkPaths {
 public:
  struct Facts {
    int paths = 0;     // that both ends have
    Bytes room;        // in flight at most, so that the peer's end holds it
    int host_mtu = 0;  // of the way within this host, if the peer is on it; else 0
    // Paths that a plan directory puts onto planned ways; empty: no plan, or it says nothing.
    std::vector<PathId> planned;
    // Paths on the plan's spare ways, the least loaded first.
    std::vector<PathId> spare;
  };

  virtual ~LinkPaths() = default;  // nothing is heard of them afterwards, and nothing read

  // Fills what the peer must know. Once.
  virtual absl::Status Describe(Address& own) = 0;
  // Once, with what the peer has said. kInvalidArgument: that makes no sense.
  virtual absl::StatusOr<Facts> Connect(const Address& peer) = 0;
  // After Connect(): whether any of them leads to the peer; if not, the owner's OnWritable()
  // follows when one does.
  virtual bool IsOpen() const { return true; }
  // Likewise, in every turn of the owner and by deadline(): replaces what has failed, and asks the
  // peer of what `known`, the owner's sender's paths, has long left. Gives words for the peer's
  // OnRepair(), in order; empty: none.
  virtual std::string Repair(const PathSet& /*known*/) { return ""; }
  // kInvalidArgument: that makes no sense.
  virtual absl::Status OnRepair(absl::string_view /*words*/) {
    return absl::InvalidArgumentError("a second address of a multipath link");
  }
  // In every turn of the owner. True: reports about paths have changed which paths are `planned`
  // and `spare`, of the facts that Connect() gave.
  virtual bool FollowPlan(Facts& /*facts*/) { return false; }
  virtual absl::Time deadline() const { return absl::InfiniteFuture(); }
  // Where what is meant for `path` goes: another one, if that is out of order for good.
  virtual PathId Carrier(PathId path) const { return path; }
  // False: full; the owner's OnWritable() follows.
  virtual bool CanSend() = 0;
  // A packet's header behind room for its envelope, which is filled in already, and its chunk: both
  // are read until the next Flush().
  virtual void Queue(PathId path, absl::Span<const std::byte> header,
                     absl::Span<const std::byte> chunk) = 0;
  virtual void Flush() = 0;
  // What is queued for one path between two Flush()es leaves together, as long as it takes no more
  // bytes than that, each packet beginning at a multiple of kPacketAlign, data last. 0: each packet
  // leaves by itself.
  virtual size_t JoinedMost() const { return 0; }
  // A packet has come that its sender had queued for `path`.
  virtual void OnHeard(PathId /*path*/) {}
  // A packet that is damaged was dropped. True: the first of the transport.
  virtual bool NoteMalformed() = 0;
  // Not OK: none of them will ever carry anything again. OnWritable() tells the owner to look.
  virtual const absl::Status& status() const = 0;
  // For people, sender first, and the UDP source port of what is sent; 0: it has none.
  virtual std::pair<std::string, int> WayOf(PathId path) const {
    return {absl::StrCat("path ", path), 0};
  }
  // Why nothing might come back, as a question: "does a firewall ...?"
  virtual std::string Suspicion() const = 0;
};

// Which link. `leads`: data goes from here to the peer.
struct LinkEnds {
  Rank peer;
  bool leads = false;
};
// Makes those of a link that is opened; packets go to `owner` from then on.
using OpenLinkPaths =
    std::function<std::unique_ptr<LinkPaths>(DatagramOwner& owner, const LinkEnds& ends)>;
using OpenPaths = std::function<std::unique_ptr<LinkPaths>(DatagramOwner& owner)>;

// Over the sockets of a transport, which outlive it. `host`: this end's address, with any port.
// With `ways` those sockets carry data whose ports lead onto planned ways.
class UdpPaths final : public LinkPaths {
 public:
  UdpPaths(UdpSockets& sockets, const SocketAddress& host, DatagramOwner& owner,
           const PlannedWays& ways = {}, const LinkEnds& ends = {})
      : sockets_(sockets), host_(host), link_(sockets.Add(&owner)), ways_(ways), ends_(ends) {}
  ~UdpPaths() override { sockets_.Remove(link_); }

  absl::Status Describe(Address& own) override;
  absl::StatusOr<Facts> Connect(const Address& peer) override;
  // Reports about paths that are new.
  std::string Repair(const PathSet& known) override;
  absl::Status OnRepair(absl::string_view words) override;
  bool FollowPlan(Facts& facts) override;
  bool CanSend() override { return sockets_.CanSend(); }
  void Queue(PathId path, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) override {
    sockets_.Queue(path, peer_[path % peer_.size()], header, chunk);
  }
  void Flush() override { sockets_.Flush(); }
  bool NoteMalformed() override { return sockets_.mutable_statistics().malformed++ == 0; }
  const absl::Status& status() const override { return status_; }
  std::string Suspicion() const override;
  std::pair<std::string, int> WayOf(PathId path) const override;

 private:
  // For each way, the first path that takes it and is not one of `but`.
  std::vector<PathId> PathsOf(absl::Span<const topology::PathWay> ways,
                              absl::Span<const PathId> but) const;
  absl::Status FindPlannedPaths(Facts& facts);

  const absl::Status status_;  // sockets do not end
  UdpSockets& sockets_;
  const SocketAddress host_;
  const uint32_t link_;
  const PlannedWays ways_;
  const LinkEnds ends_;
  std::vector<SocketAddress> peer_;         // [path]
  std::vector<topology::PathWay> planned_;  // that the plan gave; empty: no plan
  uint64_t told_ = 0, followed_ = 0;        // versions of the reports
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_LINK_PATHS_H_
