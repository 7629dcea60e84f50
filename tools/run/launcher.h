// weft-run's work: serves the store, starts the ranks of this host, passes on their output and the
// signals that it gets, and ends all of them as soon as one has failed. One thread (the store's
// server has its own), one poll() loop.
#ifndef WEFT_TOOLS_RUN_LAUNCHER_H_
#define WEFT_TOOLS_RUN_LAUNCHER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace weft::run {

enum class OutputMode { kAll, kRank0, kNone };
enum class BindMode { kNone, kCore };

// What a plan directory says of this host.
struct PlannedHost {
  std::vector<int> ranks;                                      // [local rank]
  std::vector<std::pair<std::string, std::string>> variables;  // for every rank
};

struct RunOptions {
  int ranks = 1;  // on this host
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free one (one host only)
  int store_port = 0;   // 0: one host: a free one; several: master_port + 1
  std::string store;    // a store that somebody else serves, "host:port"; empty: serve one
  // Whether ranks talk to a relay in this process, so that the store sees one client a host. By
  // default where a host has several ranks, and the store may be another host's.
  std::optional<bool> relay;
  // Hosts for each relay of a second level, between the hosts' relays and the store
  // (store_relay_tree.h); 0: there is no second level. By default DefaultFanOut().
  std::optional<int> fan_out;
  // How long a store that is gone may take to come back (weft-store --state-dir).
  absl::Duration store_patience = absl::Seconds(2);
  // How many times, over all ranks of this host, a rank that died is started anew while the others
  // go on: for programs whose ranks meet again (collectives/recovery.h).
  int recover = 0;
  // Pauses before a rank that ends soon again and again is started anew (recovery/decisions.h).
  absl::Duration backoff_first = absl::Milliseconds(500), backoff_most = absl::Seconds(15);
  // With `recover`, on one host: how long the job may stand still until it is diagnosed and the
  // rank that the others wait for is started anew (recovery/finding_judge.h); 0: no rank is.
  absl::Duration still = absl::Seconds(30);
  // Processes that wait for the place of a rank that dies (collectives/rendezvous/warm_process.h).
  int spares = 0;
  std::string log_dir;  // empty: no logs
  OutputMode output = OutputMode::kAll;
  bool prefix = true;
  BindMode bind = BindMode::kNone;
  absl::Duration grace = absl::Seconds(5);  // between a forwarded signal and SIGKILL
  // From SIGKILL to giving up a process that a device or a file system keeps within the kernel.
  absl::Duration kill_patience = absl::Minutes(1);
  std::vector<std::string> settings;  // "name=value"
  std::string plan;                   // directory; empty: none
  // What to do where too few switches answer to tell whether the plan is stale: warn or refuse.
  std::string plan_unverified = "warn";
  PlannedHost planned;          // of it
  std::string job;              // empty: drawn
  int64_t rank_open_files = 0;  // soft limit of descriptors for the ranks; 0: this process's
  bool json = false;
  // Where weft-agent's pages are served while the job runs; empty: nowhere.
  std::string agent;
  std::vector<std::string> command;
};

// The exit status: that of the first rank that failed (128 + its signal), 128 + the signal that
// ended the job, StatusOfFailedStart() when the program could not be started, 2 for wrong options,
// 1 where all went well and output was lost on a full disk.
// A status: the job was never started. To be called once, in the program's first thread, before
// there are others.
absl::StatusOr<int> RunJob(const RunOptions& options);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_LAUNCHER_H_
