// A plan of paths as transports use it: which way each connection between two NICs should take
// through the fabric, and what the switches on the way hash. A source port that takes the way is
// computed when the connection is made, so that the other port, which is hashed as well, may be
// any.
//
// weft-plan paths writes it into a plan directory (the setting `plan`, WEFT_PLAN) as paths.txt; a
// line each, '#' begins a comment, names as in the fabric file:
//
//   weft-paths 1
//   fingerprint 0123456789abcdef                 of the fabric and hashes that were planned for
//   lines 57                                     behind this one, of a file that is whole
//   ranks 16                                     of the job
//   host h0 10.1.0.1 leaf0 [10.1.8.1 leaf1 ...]  address and first switch of each NIC
//   hash leaf0 linux:seed=1000                   of each switch that has a choice
//   router 10.2.0.1 spine1                       a name that a switch has when it is probed
//   flow 0 5 h0:0 h2:0 0.0012 leaf0:1/4>spine1   rank, peer, NICs, seconds that its fullest link is
//                                                busy, choices: member 1 of 4 at leaf0, to spine1
//   detour spine1 0 0.0016 leaf0:2/4>spine2      the way of the first flow while spine1 carries
//                                                nothing; the other flows stay where they are
//   rate 833333 0 4 9                            bytes a second that each of these flows gets while
//                                                all that is planned runs
//   spare leaf0 leaf1 0.0024 leaf0:3/4>spine3    a way between two leaves, for what is not planned
//
// Connections are looked up by ranks where the caller knows them; else by NICs, the n-th connection
// taking the n-th flow. Connections beyond the plan take the spare way that is least loaded with
// what was handed out before.
//
// While a switch carries nothing, each flow has the way that was planned for that case: Now(). All
// ranks that have heard the same reports (path_reports.h) get the same ways.
#ifndef WEFT_TOPOLOGY_PLAN_CONNECTION_PLAN_H_
#define WEFT_TOPOLOGY_PLAN_CONNECTION_PLAN_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"
#include "topology/ecmp/switch_hash.h"
#include "topology/plan/path_reports.h"

namespace weft::topology {

inline constexpr absl::string_view kConnectionPlanFile = "paths.txt";
// Beside it: the traffic that was planned for, as htsim's traffic lists, for weft-sim and weft-cc
// tune; and the congestion controller that weft-cc tune found for it, which multipath reads.
inline constexpr absl::string_view kPlanTrafficFile = "traffic.cm";
inline constexpr absl::string_view kPlanControllerFile = "controller.txt";

// Source ports that planned connections over tcp use: below those that kernels hand out (32768 and
// up by default), so that hardly any is taken.
inline constexpr std::pair<uint16_t, uint16_t> kTcpPlanPorts = {16'384, 32'767};

// A switch (or a dual-homed host) takes member `index` of `count` equal next hops.
struct PathChoice {
  std::string at;
  uint32_t index = 0, count = 1;
  std::string to;  // the switch that this member is; empty: not known
  bool operator==(const PathChoice& other) const {
    return at == other.at && index == other.index && count == other.count;
  }
};

struct ConnectionPlanHost {
  std::string name;
  std::vector<IpAddress> addresses;  // [NIC]
  std::vector<std::string> leaves;   // [NIC] the first switch
};

struct PathWay {
  double seconds = 0;  // its fullest link is busy, with all that is planned
  double rate = 0;     // bytes a second that its flow gets while all of that runs; 0: not known
  std::vector<PathChoice> choices;
  bool is_planned = false;  // of a flow of the plan; else of a connection beyond it
  int flow = -1;            // which, of the plan's; -1: of none
  double unplanned = 0;     // seconds of connections beyond the plan that have it as a spare way
  std::string ToString() const;  // "leaf0:1/4 spine1:0/2"; "direct" without choices
};

struct ConnectionPlanFlow {
  int rank = -1, peer = -1;
  std::string source, target;  // hosts
  int source_nic = 0, target_nic = 0;
  PathWay way;
};

// What a file holds.
struct ConnectionPlanText {
  std::string fingerprint;
  int ranks = 0;
  std::vector<ConnectionPlanHost> hosts;
  std::map<std::string, SwitchHash> hashes;    // by switch
  std::map<std::string, std::string> routers;  // switches, by what probes call them
  std::vector<ConnectionPlanFlow> flows;
  std::map<std::pair<std::string, std::string>, std::vector<PathWay>> spares;  // by leaves
  // By the switch that carries nothing: the flows that leave their way, and the way they take.
  std::map<std::string, std::map<int, PathWay>> detours;
};

// InvalidArgument names origin:line and what is wrong.
absl::StatusOr<ConnectionPlanText> ParseConnectionPlan(absl::string_view text,
                                                       absl::string_view origin);
std::string ConnectionPlanFileText(const ConnectionPlanText& plan);

// Who connects to whom. Ranks -1: not those that were planned for, or not known.
struct PathEnds {
  IpAddress source, target;
  int rank = -1, peer = -1;
};

// Thread-safe.
class ConnectionPlan {
 public:
  explicit ConnectionPlan(ConnectionPlanText text, std::string origin);
  // The plan of a directory; the same object for all who ask for it while any of them has it, so
  // that connections of one process are counted together. Errors name the file.
  // FailedPrecondition: it was planned for another fabric.toml or hashes.txt than those beside it,
  // or one of them is missing.
  static absl::StatusOr<std::shared_ptr<ConnectionPlan>> Load(const std::string& folder);

  const ConnectionPlanText& text() const { return text_; }
  const std::string& origin() const { return origin_; }  // the file, for messages
  // FailedPrecondition: the plan is for other hosts than the one with this address.
  absl::Status CheckHost(const IpAddress& own) const;
  // Likewise: for another number of ranks, or for this rank on another host.
  absl::Status CheckRank(const IpAddress& own, int rank, int ranks) const;

  // The name of the host that has this address; else as CheckHost().
  absl::StatusOr<std::string> HostOf(const IpAddress& address) const;

  // Ways for the sockets or queue pairs of one more connection: as many as are planned; else
  // `count`, spare ones. Empty: both ends are under one switch, and there is nothing to choose.
  // FailedPrecondition: an address that the plan does not know.
  absl::StatusOr<std::vector<PathWay>> Take(const PathEnds& ends, int count);
  // Ways for what only answers data that comes from `target`, as acknowledgements do: the least
  // loaded spare ones in turn, which stay as loaded as they are.
  absl::StatusOr<std::vector<PathWay>> Answer(const PathEnds& ends, int count);
  // All spare ways, those that have not failed before the others, then the least loaded first; by
  // the reports: none over a switch that carries nothing, if there is another, and each as the
  // first switch numbers its next hops now.
  absl::StatusOr<std::vector<PathWay>> Spares(const PathEnds& ends);
  // At `now` nothing is answered on a way, and something on another. Between these two leaves the
  // way is handed out no more, to nobody, until it Answers(), or kFailedFor has passed and another
  // fails; and it is reported.
  void Fails(const PathEnds& ends, const PathWay& way, absl::Time now);
  // A way for a socket or queue pair that was lost, whyever, which is not reported: the least
  // loaded that has not failed; where all have, the one that failed first.
  absl::StatusOr<PathWay> Instead(const PathEnds& ends, const PathWay& failed, absl::Time now);
  // Another way than those of `left`, for a queue pair that left them, the newest last, though they
  // may not have failed for others: of a planned flow the detour around what was left last, else
  // the least loaded one; where there is no other, the one that was left first.
  absl::StatusOr<PathWay> Another(const PathEnds& ends, absl::Span<const PathWay> left);
  // The way of a planned flow, by the reports: the planned one, or the detour while a switch
  // carries nothing. Where the first switch has left the lost one, the choice there is one of those
  // that are left. Of connections beyond the plan: `way` itself.
  PathWay Now(const PathWay& way) const;
  // Whether the first switch of a planned flow has left a next hop, so that it hashes otherwise.
  bool IsRerouted(const PathWay& way) const;
  // As the plan has it; of connections beyond the plan: `way` itself.
  PathWay Planned(const PathWay& way) const;
  // Whether it has failed between these leaves, for anybody of this process.
  bool HasFailed(const PathEnds& ends, const PathWay& way) const;

  // Reports about switches: what is known, what others say, and how often that has changed.
  std::string Reports() const;
  // Why planned connections are where they are, for people: "by the reports: left spine0 leaf1", or
  // "nothing is reported of any switch".
  std::string WhyNow() const;
  absl::Status Hear(absl::string_view reports);  // InvalidArgument: they are none
  uint64_t reports_version() const { return reports_version_.load(std::memory_order_acquire); }
  // The first switch `leaf` hashes over its other next hops, or over `over` again.
  void Leaves(const std::string& leaf, const std::string& over, bool has_left);
  bool HasLeft(const std::string& leaf, const std::string& over) const;

  static constexpr absl::Duration kFailedFor = absl::Minutes(1);
  // A way that had failed carries packets again.
  void Answers(const PathEnds& ends, const PathWay& way);
  // Ways between two leaves that count as failed; of the failures of a pair of leaves the newest
  // kFailedMost are kept.
  size_t failed() const;
  static constexpr size_t kFailedMost = 64;

  // The `nth` source port in first..last with which `tuple` takes the way; each (`tuple`, `salt`)
  // begins its search elsewhere. None: fewer ports than that do.
  std::optional<uint16_t> Port(const PathWay& way, FiveTuple tuple, uint64_t salt, int nth,
                               uint16_t first, uint16_t last) const;
  bool Takes(const PathWay& way, const FiveTuple& tuple) const;
  // Connections that got a port of the kernel's, as no free one took their way. Gives how many
  // there are now.
  int64_t CountKernelPort() { return ++kernel_ports_; }

 private:
  struct Place {
    size_t host = 0;
    int nic = 0;
  };
  absl::StatusOr<Place> Find(const IpAddress& address) const;
  using LeafPair = std::pair<std::string, std::string>;
  struct Failure {
    std::vector<PathChoice> choices;
    absl::Time since;
  };
  static bool Passes(const PathWay& way, absl::Span<const std::string> switches);
  absl::StatusOr<LeafPair> LeavesOf(const PathEnds& ends) const;
  std::vector<PathWay>* SparesOf(const LeafPair& leaves);  // null: none
  void MarkFailed(const LeafPair& leaves, const PathWay& failed, absl::Time now);
  bool HasFailed(const LeafPair& leaves, const PathWay& way) const;
  PathWay* LeastLoaded(const LeafPair& leaves, absl::Span<const PathWay> left, bool is_planned);
  std::string HostNames() const;
  LeafPair LeavesOf(const ConnectionPlanFlow& flow) const;
  void LearnMembers();
  PathWay NowLocked(const PathWay& planned) const;
  PathWay Without(const PathWay& way, const LeafPair& leaves,
                  absl::Span<const std::string> lost) const;
  void Reported(bool is_new);

  ConnectionPlanText text_;
  const std::string origin_;
  std::map<std::string, size_t> numbers_;  // of hosts
  std::map<IpAddress, Place> places_;
  std::map<std::pair<int, int>, std::vector<size_t>> of_ranks_;  // flows
  std::map<int, std::string> host_of_rank_;                      // of ranks with flows
  std::map<std::pair<IpAddress, IpAddress>, std::vector<size_t>> of_addresses_;  // flows
  double usual_seconds_ = 0;  // of one flow: what a spare way gains when it is handed out
  // What is known of the next hops of first switches: by switch and number of next hops their sets,
  // and by leaves and that number which of these it is. Most have one; another where some leaves
  // are not reached over all switches.
  using Members = std::map<uint32_t, std::string>;  // by index
  std::map<std::pair<std::string, uint32_t>, std::vector<Members>> sets_;
  std::map<std::pair<LeafPair, uint32_t>, size_t> set_of_;
  mutable std::mutex mutex_;  // of all below, and of the spares' seconds
  std::map<std::pair<IpAddress, IpAddress>, size_t> next_;  // flow of the next connection
  std::map<LeafPair, std::vector<Failure>> failures_;       // the oldest first
  std::map<LeafPair, size_t> answered_;                     // ways handed out by Answer()
  PathReports reports_;
  std::atomic<uint64_t> reports_version_ = 0;
  std::atomic<int64_t> kernel_ports_ = 0;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PLAN_CONNECTION_PLAN_H_
