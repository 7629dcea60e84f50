// Counts the paths between leaves by load, where switches do not tell which way flows take: hosts
// under every other leaf probe a host under one leaf, while one flow at a time towards that leaf
// fills its path (topology/discovery/load_paths.h). The hosts of a job do it together.
#ifndef WEFT_TOOLS_TOPO_LOAD_PROBING_H_
#define WEFT_TOOLS_TOPO_LOAD_PROBING_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

  // Both by every rank. FailedPrecondition: the hosts or the load do not suffice, or round trips
  // contradict each other.
  //
  // Puts the paths that are found into `seen`, in place of its flows, and which names of routers
  // are of which path: routers that answer by another name to each side, as Linux does over IPv6,
  // are one then.
  absl::Status CountPaths(topology::SeenFabric& seen) { return FindByLoad(seen, true); }
  // Adds the bandwidth of the paths that the flows of `seen` have told.
  absl::Status MeasurePaths(topology::SeenFabric& seen) { return FindByLoad(seen, false); }
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

  using PathNames = std::map<std::string, int>;  // path, by the name of its router

  LoadProbing(JobHosts& job, int ports) : job_(job), ports_(ports) {}
  absl::Status FindByLoad(topology::SeenFabric& seen, bool counts);
  // Towards a leaf with most hosts, other than `but`.
  absl::Status ChooseHosts(const topology::SeenFabric& seen, int but);
  absl::StatusOr<topology::LoadPaths> FindPaths();
  absl::StatusOr<PathNames> NamesOf(const topology::LoadPaths& paths);
  absl::Status AddNamesOfTarget(const topology::SeenFabric& seen, PathNames& names);
  void TakePaths(const topology::LoadPaths& paths, topology::SeenFabric& seen) const;
  absl::Status MeasureIdle();
  // Finds `rate_`, which overloads a path.
  absl::Status FindRate();
  absl::StatusOr<std::vector<topology::LoadStep>> LoadUntilWhole();
  absl::StatusOr<Outcome> Step(const Load& load);
  // The own host's median round trips, by port.
  std::vector<absl::Duration> Trips(topology::SeenNic own, int rounds, absl::Duration timeout);
  topology::LoadStep Understand(const Outcome& outcome) const;
  // The key of an exchange: loads towards each leaf have keys of their own.
  std::string Key(const std::string& what) const { return absl::StrCat(towards_, ": ", what); }
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
  int target_ = -1;  // that leaf's number
  absl::Time begin_;
  int towards_ = 0;  // leaves, so far
  Bytes sent_;
  int loads_ = 0;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_LOAD_PROBING_H_
