// Counts the paths between leaves by load, where switches do not tell which way flows take: hosts
// under every other leaf probe a host under one leaf, while one flow at a time towards that leaf
// fills its path (topology/discovery/load_paths.h). The hosts of a job do it together.
#ifndef WEFT_TOOLS_TOPO_LOAD_PROBING_H_
#define WEFT_TOOLS_TOPO_LOAD_PROBING_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "tools/topo/job_hosts.h"
#include "topology/discovery/infer.h"
#include "topology/discovery/load_paths.h"

namespace weft::topo {

// Words of the command line.
struct LoadWords {
  std::string when = "auto";
  std::string rate = "0";
  std::string traffic = "4GB";
  std::string limit = "90s";

  void Declare(CLI::App& app);
};

class LoadProbing {
 public:
  // Both must outlive it. InvalidArgument: a word that is wrong.
  static absl::StatusOr<LoadProbing> Make(JobHosts& job, const LoadWords& words, int ports);

  // Every rank. Puts what is found into `seen`, in place of its flows. FailedPrecondition: the
  // hosts or the load do not suffice, or round trips contradict each other.
  absl::Status Run(topology::SeenFabric& seen);
  Bytes sent() const { return sent_; }
  int loads() const { return loads_; }

 private:
  struct Prober {  // of a leaf
    std::vector<topology::SeenNic> nics;
    absl::Duration idle;  // median round trip
  };
  struct Load {
    std::string name;
    topology::SeenNic source;
    uint16_t port = 0;
    Bandwidth rate;
    absl::Duration duration;
    bool probed = false;  // do all probe meanwhile
  };
  struct Outcome {
    Bytes sent;
    Bandwidth got;
    std::vector<std::vector<absl::Duration>> trips;  // [leaf][port]; empty: did not probe
    double Delivered(const Load& load) const;        // share of what was sent
  };

  LoadProbing(JobHosts& job, int ports) : job_(job), ports_(ports) {}
  absl::Status ChooseHosts(const topology::SeenFabric& seen);
  absl::Status MeasureIdle();
  // Finds `rate_`, which overloads a path.
  absl::Status FindRate();
  absl::StatusOr<std::vector<topology::LoadStep>> LoadUntilWhole();
  absl::StatusOr<Outcome> Step(const Load& load);
  // The own host's median round trips, by port.
  std::vector<absl::Duration> Trips(topology::SeenNic own, int rounds, absl::Duration timeout);
  topology::LoadStep Understand(const Outcome& outcome) const;
  topology::SeenNic ProberOf(const Prober& leaf) const { return leaf.nics.back(); }
  const std::string& NameOf(topology::SeenNic nic) const;

  JobHosts& job_;
  int ports_;
  Bandwidth rate_most_, rate_;
  Bytes traffic_most_;
  absl::Duration limit_;
  topology::SeenNic sink_, probed_;  // under one leaf, on two hosts
  std::vector<Prober> leaves_;       // the others
  std::vector<uint16_t> probe_ports_;
  Bytes sent_;
  int loads_ = 0;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_LOAD_PROBING_H_
