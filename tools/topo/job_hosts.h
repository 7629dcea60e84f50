// The hosts of a job that probe each other: they meet at the job's store (weft-run's, or the one
// that a rank serves: rendezvous/job_environment.h), tell their addresses, and answer each other's
// probes. Of each host the rank with LOCAL_RANK 0 probes; the others only wait.
#ifndef WEFT_TOOLS_TOPO_JOB_HOSTS_H_
#define WEFT_TOOLS_TOPO_JOB_HOSTS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/job_environment.h"
#include "topology/discovery/infer.h"
#include "topology/discovery/trace.h"
#include "topology/ecmp/echo_prober.h"

namespace weft::topo {

// Words of the command line.
struct ProbeWords {
  std::string interfaces;
  int port = topology::kRoceTargetPort;
  int ports = 64;
  std::string timeout = "200ms";
  int rounds = 4;

  void Declare(CLI::App& app);
};

class JobHosts {
 public:
  // Every rank. The phases of one job are told apart by `program`. Errors name what is wrong with
  // the environment, an interface, or the port that probes are answered at.
  static absl::StatusOr<std::unique_ptr<JobHosts>> Meet(const ProbeWords& words,
                                                        const std::string& program);

  int rank() const { return environment_.rank.value(); }
  int ranks() const { return environment_.world_size; }
  int ranks_here() const { return environment_.local_world_size; }  // on this host
  uint16_t port() const { return port_; }                           // that probes go to
  absl::Duration timeout() const { return timeout_; }               // of one answer
  int own() const { return own_; }  // number of this host; -1: another rank probes for it
  const std::vector<topology::SeenHost>& hosts() const { return hosts_; }
  collectives::Store& store() { return *store_.store; }
  topology::TraceStatistics& statistics() { return statistics_; }
  const std::vector<std::string>& interfaces() const {
    return interfaces_;
  }  // of this host, by NIC
  // Answers at a NIC of this host.
  topology::EchoServer& server(int nic) { return *servers_[static_cast<size_t>(nic)]; }

  // What every host says, by host; ranks without a host to speak for are not heard. Where a rank
  // has a `problem`, every rank gets that of the first such rank, so that all go on, or end,
  // together.
  absl::StatusOr<std::vector<nlohmann::json>> Exchange(
      const std::string& what, const nlohmann::json& own,
      const absl::Status& problem = absl::OkStatus());
  // What rank 0 says, or its error; what the others give is not read.
  absl::StatusOr<std::string> FromRankZero(const std::string& what,
                                           const absl::StatusOr<std::string>& own);
  // Calls `attempt` on rank 0 alone; its outcome is every rank's.
  absl::Status TryOnRankZero(const std::string& what, const std::function<absl::Status()>& attempt);
  // The end of every rank, whatever has become of it: nobody answers probes any more. Gives the
  // rank's own error, else that of the first rank with one.
  absl::Status Conclude(const absl::Status& own);

  topology::TraceOptions Options(topology::SeenNic source, topology::SeenNic target) const;
  // `count` different source ports, drawn anew for each `salt`, the same at every host or not; none
  // of `but`.
  std::vector<uint16_t> DrawPorts(int count, uint64_t salt, bool alike = false,
                                  const std::set<uint16_t>& but = {}) const;
  std::string Key(const std::string& what) const { return program_ + "/" + what; }
  std::string NameOf(int rank) const;  // "rank 3 on h1"

 private:
  absl::Status TellAddresses(const ProbeWords& words);
  std::string Missing();  // "2 of 16 ranks have not come: 3, 7"

  std::string program_;
  collectives::JobEnvironment environment_;
  collectives::JobStore store_;
  std::vector<topology::SeenHost> hosts_;
  std::vector<int> rank_of_host_;
  std::vector<std::string> interfaces_;
  int own_ = -1;
  uint16_t port_ = 0;
  absl::Duration timeout_;
  int rounds_ = 4;
  std::vector<std::unique_ptr<topology::EchoServer>> servers_;  // [NIC]
  topology::TraceStatistics statistics_;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_JOB_HOSTS_H_
