// One process's place in a job: who it is, how it reaches the others, and the engine that moves
// everything.
//
// All communicators of a process share its endpoint, its links and its progress engine, so that
// making a group costs no connection. Links are made when a call first needs them.
#ifndef WEFT_COLLECTIVES_ENDPOINT_H_
#define WEFT_COLLECTIVES_ENDPOINT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/records.h"
#include "base/settings.h"
#include "collectives/store/store.h"
#include "net/transport.h"
#include "topology/job/mesh.h"

namespace weft::collectives {

// Parts of joining a job and what each took, in their order.
using StartPhases = std::vector<std::pair<std::string, absl::Duration>>;

struct GroupPlace;
struct RankPlace;
namespace planner {
struct CostTable;
}  // namespace planner

struct EndpointOptions {
  Rank rank;  // of the job
  int world_size = 1;
  // The job's parallel layout: the addresses of this rank's neighbours in its groups are fetched at
  // once, those of others when it first sends to them. Without axes: one ring of all ranks.
  topology::Mesh mesh;
  int generation = 0;  // of this rank's process; replaced processes have a higher one
  // Exchange of addresses. Outlives the endpoint.
  Store* store = nullptr;
  std::string job = "job";  // prefix of this endpoint's keys; unique among a store's jobs
  // Ranks with the same text share memory. Empty: the kernel's boot id, the user, and the network
  // and user namespaces.
  std::string host;
  // All zero: the first rank that comes draws one and hands it out through the store; rank 0 where
  // the store has no CompareSet.
  net::JobSecret secret{};
  Settings settings{LibrarySettings()};
};

class Endpoint {
 public:
  // Listens, publishes this rank's addresses and learns its neighbours', and from rank 0 who shares
  // a host with whom: returns when all world_size ranks have called it, or kDeadlineExceeded
  // (store.timeout) naming those missing.
  static absl::StatusOr<std::shared_ptr<Endpoint>> Create(EndpointOptions options);
  virtual ~Endpoint() = default;

  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;
  virtual const Settings& settings() const = 0;
  virtual const topology::Mesh& mesh() const = 0;
  // The number of the host that a rank of the job is on; hosts are numbered by their lowest ranks.
  virtual int host(Rank rank) const = 0;
  // Where a rank of the job stands, as it said at start-up; the host's name is its number.
  virtual const RankPlace& place(Rank rank) const = 0;
  // What a group of these ranks stands on, with the ring that a plan directory has for it. Null:
  // one host.
  virtual std::shared_ptr<const GroupPlace> PlaceOf(absl::Span<const Rank> ranks) const = 0;
  // Bytes that a rank of such a group may have for all others in a small collective, which rings in
  // memory that they share hold (shm.multicast_max); 0: they have none.
  virtual uint64_t MulticastBytes(absl::Span<const Rank> ranks) const = 0;
  // What Create() spent its time on: "transports", "exchange".
  virtual const StartPhases& start_phases() const = 0;
  // Rank 0's: what collectives are planned by.
  virtual const planner::CostTable& costs() const = 0;
  // "rank 0 -> 1: shm ..., 4.2 GB sent": a line a link, for people; then "priority high: 12 works,
  // 3.4 MB, 0.21 ms each", a line for each that there was.
  virtual std::string Describe() const = 0;
  // What has passed over each link that there is.
  struct LinkCounters {
    Rank peer;
    bool sends = false;  // to the peer; else from it
    net::FlowCounters counters;
  };
  virtual std::vector<LinkCounters> Counters() const = 0;
  // This process's ring, where the caller may add phases and steps; null: records.enabled is off,
  // or there is none. Lives as long as the endpoint.
  virtual Records* records() const = 0;
  // Memory of `bytes` zeroes, aligned to pages, that the ranks of this host read, and reduce, where
  // it lies; of other memory they get copies. Goes with its last owner, which may outlive the
  // endpoint. Each takes a descriptor from 64 KiB on; null: there is no memory. Thread-safe.
  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ENDPOINT_H_
