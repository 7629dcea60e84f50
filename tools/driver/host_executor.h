// The executor of one host: joins the job's driver, runs the ranks of the node that its host gets,
// tests the host when told to, and reports. Without a node its host is a spare.
//
// An executor that has not reached the store for the job's lease ends its ranks, unless they go on
// with those of other nodes (fence.h): by then, others may run in their place. Its own death ends
// them as well (tools/run/process.h).
#ifndef WEFT_TOOLS_DRIVER_HOST_EXECUTOR_H_
#define WEFT_TOOLS_DRIVER_HOST_EXECUTOR_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/driver/self_test.h"
#include "tools/run/launcher.h"

namespace weft::driver {

struct ExecutorOptions {
  // Used are store (unless etcd says where), job, command, log_dir, output, prefix, bind, grace,
  // settings, spares, store_patience, master_port, rank_open_files, and relay: the ranks of this
  // host then ask the store through one connection of the executor's. How many ranks there are, the
  // driver says.
  run::RunOptions run;
  // Where the driver's store is; empty: run.store says. An executor whose driver is on another host
  // all of a sudden, or whose store is gone, begins anew in the same process, and joins that.
  std::string etcd;
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
