// The connections of one simulated rank to its peers, really opened: from its own loopback address
// (127.64.0.0 and on, one a rank) to that of the peer, with the handshake that opens every
// connection of ours, in the order that PlanConnections gives (fast_init.h). A rank begins a round
// when its own connections of the round before stand; nobody waits for anybody else.
//
// With many ranks, only a sample's are opened: all connections of ranks on evenly spread hosts,
// with peers wherever they are.
#ifndef WEFT_TOOLS_INIT_PEER_LINKS_H_
#define WEFT_TOOLS_INIT_PEER_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "collectives/rendezvous/fast_init.h"
#include "tools/init/process_context.h"

namespace weft::init {

// Where a rank listens, as its record says.
SocketAddress AddressOf(const Options& options, int rank);
// Whether all of its connections are opened.
bool Sampled(const Options& options, int rank);
int SampledRanks(const Options& options);
// File descriptors of all connections and listeners, at most.
int64_t LinkDescriptors(const Options& options);

class PeerLinks {
 public:
  PeerLinks(const ProcessContext& context, int rank);
  ~PeerLinks();

  // Before its record is exchanged: nobody dials in vain. Nothing where nobody will dial.
  absl::Status Listen();
  // `done`: all stand, or an error that names the peer. At once where there are none.
  void Begin(std::function<void(const absl::Status&)> done);
  void Advance(absl::Time now);  // gives up when it has taken too long

 private:
  class Listener;
  class Link;
  struct Edge {
    collectives::PlannedConnection plan;
    bool stands = false;
  };

  void Dial(int peer);
  void Accept();
  // A link's handshake is over.
  void Stands(int peer);
  void Fail(const absl::Status& status);
  void Proceed();
  Edge* Find(int peer, bool dials);

  const ProcessContext& context_;
  const int rank_;
  std::vector<Edge> edges_;  // by round
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Link>> links_;
  bool begun_ = false;
  int dialled_round_ = -1;
  absl::Time give_up_ = absl::InfiniteFuture();
  absl::Status failed_;
  std::function<void(const absl::Status&)> done_;
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_PEER_LINKS_H_
