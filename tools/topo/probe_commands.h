// The subcommands of weft-topo that run on the hosts of a job: discover, learn-hash.
#ifndef WEFT_TOOLS_TOPO_PROBE_COMMANDS_H_
#define WEFT_TOOLS_TOPO_PROBE_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/topo/job_hosts.h"
#include "tools/topo/load_probing.h"
#include "topology/discovery/infer.h"

namespace weft::topo {

// Run() returns the exit status.

class DiscoverCommand {
 public:
  explicit DiscoverCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;

 private:
  absl::Status Discover(JobHosts& job, const topology::InferOptions& options) const;
  // What the hosts see of each other, without load.
  absl::StatusOr<topology::SeenFabric> Look(JobHosts& job) const;

  CLI::App* command_;
  ProbeWords words_;
  LoadWords load_;
  std::string lldp_ = "auto";
  std::string out_ = "fabric", switch_bandwidth_;
  double missed_ = 0.01;
};

class LearnHashCommand {
 public:
  explicit LearnHashCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;

 private:
  absl::Status Learn(JobHosts& job, absl::Duration limit) const;

  CLI::App* command_;
  ProbeWords words_;
  std::string folder_;
  std::string limit_ = "5m";
  double wrong_ = 0.02, right_ = 0.99;
  int check_ports_ = 32;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_PROBE_COMMANDS_H_
