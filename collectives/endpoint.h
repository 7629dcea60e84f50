// One process's place in a job: who it is, how it reaches the others, and the engine that moves
// everything.
//
// All communicators of a process share its endpoint, its links and its progress engine, so that
// making a group costs no connection. Links are made when they are first used.
#ifndef WEFT_COLLECTIVES_ENDPOINT_H_
#define WEFT_COLLECTIVES_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/settings.h"
#include "base/trace.h"
#include "collectives/rendezvous/store.h"
#include "net/transport.h"

namespace weft::collectives {

struct RankPlace;
namespace planner {
struct CostTable;
}  // namespace planner

struct EndpointOptions {
  Rank rank;  // of the job
  int world_size = 1;
  // Exchange of addresses and, after a failure, of what each rank was doing. Outlives the endpoint.
  Store* store = nullptr;
  std::string job = "job";  // prefix of this endpoint's keys; unique among a store's jobs
  // Ranks with the same text share memory. Empty: the kernel's boot id, the user, and the network
  // and user namespaces.
  std::string host;
  // All zero: rank 0 draws one and hands it out through the store.
  net::JobSecret secret{};
  Settings settings{LibrarySettings()};
  // Gets one span a collective: named as the call, with its sequence number and bytes. May be null;
  // else outlives the endpoint.
  Trace* trace = nullptr;
  int trace_track = 0;
};

class Endpoint {
 public:
  // Listens, publishes this rank's addresses and learns the others': returns when all world_size
  // ranks have called it, or kDeadlineExceeded (store.timeout) naming those missing.
  static absl::StatusOr<std::shared_ptr<Endpoint>> Create(EndpointOptions options);
  virtual ~Endpoint() = default;

  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;
  virtual const Settings& settings() const = 0;
  // Which host a rank of the job is on; equal texts: the same.
  virtual const std::string& host(Rank rank) const = 0;
  // Where a rank of the job stands, as it said at start-up.
  virtual const RankPlace& place(Rank rank) const = 0;
  // Rank 0's: what collectives are planned by.
  virtual const planner::CostTable& costs() const = 0;
  // "rank 0 -> 1: shm ..., 4.2 GB sent": a line a link, for people.
  virtual std::string Describe() const = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ENDPOINT_H_
