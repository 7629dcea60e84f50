// The search of all ranks of a job for what switches hash. Linux's seeds are tried in chunks, in
// order, with all cores of all ranks, so that small ones are found at once; when all were tried, by
// other flows once more. Each host tries the hashes of switch silicon for some of the switches
// meanwhile. What is found is told to all at the job's store.
#ifndef WEFT_TOOLS_TOPO_HASH_SEARCH_H_
#define WEFT_TOOLS_TOPO_HASH_SEARCH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "tools/topo/job_hosts.h"
#include "topology/discovery/fit_hash.h"
#include "topology/discovery/probed_flows.h"

namespace weft::topo {

struct FoundHashes {
  std::map<NodeId, topology::SwitchHash> hashes;
  double tried_share = 0;  // of all 2^32 seeds, by all ranks
  bool in_time = true;     // false: the search ended since the time ran out
};

// Every rank makes one, of the same switches. All must outlive it.
class HashSearch {
 public:
  // `wanted`: of `switches`; `linear`: those of them that a linear map explains, so that none of
  // Linux's seeds does; `wrong`: share of flows that a hash may fail to explain.
  HashSearch(JobHosts& job, const std::map<NodeId, topology::SwitchChoices>& switches,
             const std::vector<NodeId>& wanted, const std::set<NodeId>& linear, double wrong)
      : job_(job), switches_(switches), wanted_(wanted), linear_(linear), wrong_(wrong) {}

  // The hashes of those of `wanted` that are found by `deadline`, the same at every rank.
  // DeadlineExceeded names a rank that has not been heard of for kSilentMost, as one that was
  // killed.
  absl::StatusOr<FoundHashes> Run(absl::Time deadline);
  static constexpr absl::Duration kSilentMost = absl::Seconds(10);

 private:
  struct SiliconTask {
    size_t number = 0;  // of the switch, in `wanted`
    const topology::SwitchChoices* choices = nullptr;
  };
  class SiliconFits;

  std::vector<SiliconTask> OwnShare() const;
  absl::Status SearchUntil(absl::Time deadline, SiliconFits& silicon);
  bool WantsSeeds() const;  // whether any switch is left that Linux's hash may explain
  std::string BeatKey(int rank) const;
  absl::Status Beat();        // tells that this rank is alive
  absl::Status CheckBeats();  // DeadlineExceeded names a rank that is dead
  absl::Status Conclude();
  absl::Status TellFound(size_t number, const topology::SwitchHash& hash);
  absl::Status ReadFound();
  const topology::LinuxSeedSearch& SearchOf(int64_t attempt);
  absl::Status Search(int64_t first, int64_t count);

  JobHosts& job_;
  const std::map<NodeId, topology::SwitchChoices>& switches_;
  const std::vector<NodeId>& wanted_;
  const std::set<NodeId>& linear_;
  const double wrong_;
  std::string found_text_;
  std::map<NodeId, topology::SwitchHash> found_;
  bool in_time_ = true;
  int64_t beats_ = 0;
  struct Heard {
    std::string word;  // the last, and since when
    absl::Time since;
  };
  std::map<int, Heard> waiting_;  // ranks that have not ended their search
  absl::Time next_check_;
  std::map<int64_t, topology::LinuxSeedSearch> searches_;  // by attempt
  std::vector<size_t> left_;                               // of wanted_, by number of the router
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_HASH_SEARCH_H_
