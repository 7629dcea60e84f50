// The executor of one host: joins the job's driver, runs the ranks of the node that its host gets,
// tests the host when told to, and reports. Without a node its host is a spare.
//
// An executor that has not reached the store for the job's lease ends its ranks: by then, others
// may run in their place. Its own death ends them as well (tools/run/process.h).
#ifndef WEFT_TOOLS_DRIVER_HOST_EXECUTOR_H_
#define WEFT_TOOLS_DRIVER_HOST_EXECUTOR_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/driver/self_test.h"
#include "tools/run/launcher.h"

namespace weft::driver {

struct ExecutorOptions {
  // Used are store, job, command, log_dir, output, prefix, bind, grace, settings, spares,
  // store_patience, master_port, rank_open_files, and relay: the ranks of this host then ask the
  // store through one connection of the executor's. How many ranks there are, the driver says.
  run::RunOptions run;
  std::string host;                                 // the name that it joins as
  std::string address;                              // where others reach its ranks
  std::string rack;                                 // the switch above it; empty: not known
  absl::Duration period = absl::Milliseconds(250);  // between two heartbeats
  absl::Duration join_patience = absl::Minutes(5);  // until there is a driver
  SelfTestOptions self_test;
  // A shell's command that replays a step, as one rank of a group of hosts, and writes the result's
  // digest in a line "replay: DIGEST". Empty: the ranks' command with "--replay", as weft-train has
  // it.
  std::string replay;
  absl::Duration replay_limit = absl::Minutes(10);
};

// The exit status: the job's, or one of orders.h's. A status: it could not join, or the store is
// gone for good. To be called once, in the program's first thread, before there are others.
absl::StatusOr<int> RunExecutor(ExecutorOptions options);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_HOST_EXECUTOR_H_
