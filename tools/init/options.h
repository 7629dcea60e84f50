// What weft-init's sub-commands, and the benchmark beside it, are told.
#ifndef WEFT_TOOLS_INIT_OPTIONS_H_
#define WEFT_TOOLS_INIT_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/init/group_maker.h"
#include "tools/init/measured_store.h"
#include "topology/job/mesh.h"

namespace weft::init {

inline constexpr int kLinkRanks = 1024;

struct Options {
  const MeasuredStore* store = &WeftStore();
  int ranks = 0;  // 0: those of the layout
  int hosts = 0;  // 0: one for 8 ranks, or for more, so that all have as many
  std::string layout = "tp8,pp8,dp16";
  bool relay = false;
  // Every rank gets all ranks' records, in place of those that it needs.
  bool all_records = false;
  int replace = 0;   // ranks, after the rest; those of whole hosts
  int workers = 0;   // processes; 0: as few as their file descriptors allow, at least 2
  int window = 256;  // connections that a worker has under way at once
  int sources = 8;   // loopback addresses that clients dial from
  // So many ranks, on evenly spread hosts, open all their planned connections; negative: all ranks
  // do, but no more than kLinkRanks.
  int connect_ranks = -1;
  int link_port = 0;  // at which ranks listen, each at its own address
  // Makes the groups in place of the one exchange; null: nothing does.
  MakeGroupMaker group_maker;
  std::string cuda_library;  // empty: where Device::Load() looks
  int ranks_per_root = 256;
  std::vector<int> op_connections = {1, 16, 256};
  std::vector<int> op_depths = {1, 16};
  absl::Duration op_time = absl::Milliseconds(300);
  std::string fabric;  // empty: a leaf-spine of the hosts
  int fan_out = 0;     // relays below a relay; 0: all hosts at the root
  std::string costs;   // empty: measured
  absl::Duration timeout = absl::Seconds(60);

  topology::Mesh mesh;  // of `layout`
  int ranks_per_host() const { return (ranks + hosts - 1) / hosts; }
};

// Fills in what is 0, and checks that all fits together.
absl::Status Resolve(Options& options);
// The same layout with a last axis that is smaller by `factor`, for the model.
Options Shrink(const Options& options, int factor);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_OPTIONS_H_
