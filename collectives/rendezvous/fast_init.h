// All groups of a job from one exchange (MegaScale, NSDI'24, section 3.5: its groups took 1,047 s
// on 2,048 GPUs, one after the other with barriers over a blocking store).
//
//   1. every rank computes its groups from the mesh (topology/job/mesh.h);
//   2. in one exchange every rank gives its record (generation, host, address, and an NCCL unique
//      id for each block of each group of which it is the root) and gets those that it needs at
//      once: of the ranks it connects to, and of its groups' roots. So what moves grows with the
//      ranks, and not with their square;
//   3. connections are made when first used, or in the planned order, without any barrier. Another
//      rank's record is one request away (FindMembers).
//
// Unique ids: a group's ranks are cut into blocks of `ranks_per_root`; the first rank of a block
// makes its id, and ncclCommInitRankScalable takes all of them. Nobody has to say whose ids are
// whose: everyone computes who is root of what, and in which order.
//
// A rank that is replaced (RejoinGroups) comes with a higher generation, which fences its
// predecessor at the store. The replaced ranks' records take the place of the old ones, and go to
// the groups they belong to; nobody else hears of it: the ranks of other groups take no part. Where
// all ranks have to meet again anyway (collectives/recovery.h), each survivor reads the same
// records with one request (ReadReplacement).
//
// Keys lie below `prefix`. The functions block on the store; the encodings are for programs that do
// not. Thread-safe as far as the store is.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_FAST_INIT_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_FAST_INIT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/store/rank_set.h"
#include "collectives/store/store.h"
#include "topology/job/mesh.h"

namespace weft::collectives {

inline constexpr size_t kUniqueIdBytes = 128;  // ncclUniqueId

struct MemberRecord {
  int32_t generation = 0;
  std::string host;     // at most 65,535 bytes
  std::string address;  // at most 65,535 bytes: where it is connected to
  std::vector<std::string> unique_ids;
  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};
std::string EncodeMember(const MemberRecord& member);
absl::StatusOr<MemberRecord> DecodeMember(absl::string_view bytes);

// How many unique ids a rank makes, and which of them belong to (group, block): ids of a rank come
// in the order of the axes, so that `offset` is where the group's begins.
struct UniqueIdSlot {
  int root = 0;    // a rank
  int offset = 0;  // among the root's ids
};
int UniqueIdsOfRank(const topology::Mesh& mesh, int rank, int ranks_per_root);
std::vector<UniqueIdSlot> UniqueIdSlots(const topology::Mesh& mesh,
                                        const topology::MeshGroup& group, int ranks_per_root);

// The peers that a rank connects to for its groups' rings, in this order. In round 0 the even
// positions of a ring dial their next neighbour, in round 1 the odd ones: within a round a rank
// dials or listens, never both, so no chain of ranks waits for one another.
struct PlannedConnection {
  int peer = 0;
  int round = 0;
  bool dials = false;
};
std::vector<PlannedConnection> PlanConnections(const std::vector<topology::MeshGroup>& groups);

// The ranks whose records a rank needs at once: the peers of its planned connections and, with
// `ids`, the roots of its groups. Not the rank itself.
RankSet RecordsWanted(const topology::Mesh& mesh, int rank, int ranks_per_root, bool ids);

struct FastInitOptions {
  topology::Mesh mesh;
  int rank = 0;
  int generation = 0;
  int64_t round = 0;  // of a replacement, the same for all ranks that are replaced together
  std::string prefix = "init";
  std::string host;
  std::string address;
  // Whose records this rank wants.
  enum class Wanted : uint8_t {
    kPlanned,  // those that RecordsWanted() says
    kAll,      // everybody's
    kNone,     // without unique ids alone: another rank tells what is in them
  };
  Wanted wanted = Wanted::kPlanned;
  int ranks_per_root = 256;  // above this NCCL staggers the ranks of one root by design
  // ncclGetUniqueId; null: no ids.
  std::function<absl::StatusOr<std::string>()> make_unique_id;
  absl::Duration timeout = absl::Minutes(5);
};

struct JobGroup {
  topology::MeshGroup group;
  std::vector<std::string> unique_ids;  // one a block; empty without make_unique_id
};

struct JobGroups {
  std::vector<JobGroup> groups;  // one a listed axis of the mesh, in its order
  // Records of this rank and of those that it wanted, by rank.
  std::map<int, MemberRecord> members;
  std::vector<PlannedConnection> connections;
  // Versions of the groups' keys, for AwaitReplacement.
  std::vector<int64_t> versions;
};

absl::StatusOr<JobGroups> CreateGroups(Store& store, const FastInitOptions& options);

// Records for connections that were not planned, by rank, in one request. kDeadlineExceeded names
// the ranks that have given none.
absl::StatusOr<std::map<int, MemberRecord>> FindMembers(Store& store,
                                                        const FastInitOptions& options,
                                                        const RankSet& ranks);

// What the first of the replaced ranks adds to their records for the survivors, by the records as
// they were before and as they are; null: nothing.
using ReplacementNote = std::function<absl::StatusOr<std::string>(
    const std::map<int, MemberRecord>& before, const std::map<int, MemberRecord>& now)>;

// For a replaced rank: `replaced` are all ranks that are replaced together, ascending, and every
// one of them calls this. Its own record is in `options`, with the new generation.
absl::StatusOr<JobGroups> RejoinGroups(Store& store, const FastInitOptions& options,
                                       const std::vector<int>& replaced,
                                       const ReplacementNote& note);

// For any rank: waits for the records of the ranks that are replaced in options.round.
struct Replacement {
  std::map<int, MemberRecord> members;
  std::string note;
};
absl::StatusOr<Replacement> ReadReplacement(Store& store, const FastInitOptions& options);

// For a survivor: waits until ranks of its group along `axis` are replaced, and takes their
// records; returns the replaced ranks. kDeadlineExceeded: none was.
absl::StatusOr<std::vector<int>> AwaitReplacement(Store& store, const FastInitOptions& options,
                                                  JobGroups& job, int axis, absl::Duration timeout);

// Where time went: each rank's phases, in seconds, to rank 0.
struct PhaseReport {
  struct Phase {
    std::string name;
    double p50 = 0, p99 = 0, max = 0;  // seconds
    int slowest = 0;                   // rank
    std::string host;                  // its
  };
  std::vector<Phase> phases;  // at rank 0; elsewhere empty
};
absl::StatusOr<PhaseReport> ReportPhases(
    Store& store, const FastInitOptions& options,
    const std::vector<std::pair<std::string, absl::Duration>>& phases);

// ---- Encodings and keys, for programs that drive many ranks

std::string GroupKey(absl::string_view prefix, const topology::MeshGroup& group);
std::string RecordsKey(absl::string_view prefix);           // of the exchange
std::string RecordKey(absl::string_view prefix, int rank);  // of a rank's record after it
std::string EncodeReplacement(const std::map<int, MemberRecord>& members);
absl::StatusOr<std::map<int, MemberRecord>> DecodeReplacement(absl::string_view bytes);
// What one of the replaced ranks writes for all: their records, and to each group that they belong
// to, once, who they are.
struct ReplacementNews {
  std::vector<std::string> keys;
  std::vector<std::string> values;
};
ReplacementNews NewsOf(absl::string_view prefix, const topology::Mesh& mesh,
                       const std::map<int, MemberRecord>& replaced);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_FAST_INIT_H_
