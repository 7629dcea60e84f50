// What planning paths gains and takes, on MegaScale's fabric of 12,288 GPUs; with the argument
// "seeds" how fast the seeds of Linux routers are searched for. Rows for tests/bench/paths.py.
#include <time.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/status.h"
#include "topology/ecmp/linux_seed.h"
#include "topology/fabric/clos.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {
namespace {

class Bench {
 public:
  explicit Bench(Fabric fabric)
      : fabric_(std::move(fabric)), routes_(fabric_), hashes_(*FabricHashes::Create(fabric_)) {}

  // A ring on each rail through all hosts, in the order of `hosts`.
  std::vector<TrafficFlow> Rails(const std::vector<NodeId>& hosts) const {
    std::vector<TrafficFlow> flows;
    for (size_t i = 0; i < hosts.size(); ++i) {
      for (int nic = 0; nic < fabric_.nics(hosts[i]); ++nic) {
        flows.push_back({{hosts[i], nic}, {hosts[(i + 1) % hosts.size()], nic}, MiB(64)});
      }
    }
    return flows;
  }
  std::vector<NodeId> Shuffled() const {
    std::vector<NodeId> hosts(fabric_.hosts().begin(), fabric_.hosts().end());
    Random(1).Shuffle(hosts);
    return hosts;
  }
  // Every NIC sends to another one.
  std::vector<TrafficFlow> Permutation() const {
    std::vector<Endpoint> from = fabric_.Endpoints(), to = from;
    Random(2).Shuffle(to);
    std::vector<TrafficFlow> flows;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].host != to[i].host) flows.push_back({from[i], to[i], MiB(64)});
    }
    return flows;
  }

  void Run(const std::string& name, const std::vector<TrafficFlow>& flows, int subflows) {
    PathPlannerOptions options;
    options.subflows_max = subflows;
    PathPlanner planner(routes_, hashes_, options);
    double start = Now();
    absl::StatusOr<PathPlan> plan = planner.Plan(flows);
    WEFT_CHECK(plan.ok(), plan.status());
    std::string text = name + ", " + std::to_string(subflows) + " QP at most";
    Print(text + ": worst link", plan->seconds_after, plan->seconds_before, "hashing alone");
    Print(text + ": worst link", plan->seconds_after, plan->seconds_bound, "lower bound");
    Print(text + ": time to plan", Now() - start, 10, "allowed");
    Fail(text, planner, flows, *plan);
  }

 private:
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void Fail(const std::string& name, const PathPlanner& planner,
            const std::vector<TrafficFlow>& flows, const PathPlan& plan) {
    LinkId lost;
    for (const PlannedPath& path : plan.paths) {
      if (path.links.size() > 2) lost = path.links[1];
    }
    if (lost == LinkId()) return;
    fabric_.SetUp(lost, false);
    routes_.Update();
    double start = Now();
    absl::StatusOr<PathPlan> again = planner.Replan(flows, plan);
    WEFT_CHECK(again.ok(), again.status());
    Print(name + ", a leaf's uplink lost: worst link", again->seconds_after, again->seconds_before,
          "as it was");
    Print(name + ", a leaf's uplink lost: time to plan anew, " + std::to_string(again->moved) +
              " flows moved",
          Now() - start, 10, "allowed");
    fabric_.SetUp(lost, true);
    routes_.Update();
  }

  static void Print(const std::string& name, double ours, double peer,
                    const std::string& peer_name) {
    nlohmann::json row = {
        {"name", "paths"},        {"case", name}, {"ours", ours * 1e3},   {"peer", peer * 1e3},
        {"peer_name", peer_name}, {"unit", "ms"}, {"ratio", peer / ours}, {"repeats", 1}};
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  }

  Fabric fabric_;
  Routes routes_;
  FabricHashes hashes_;
};

// What weft-topo learn-hash sees of `leaves` leaves of 4 hosts that each have a seed of their own:
// the k-th host under a leaf probes the k-th under each other, all from the same 64 ports.
std::vector<LinuxRouter> SeenOfLeaves(uint32_t leaves, uint32_t spines) {
  constexpr uint32_t kHosts = 4;
  Random random(7);
  std::vector<uint16_t> ports;
  for (int i = 0; i < 64; ++i)
    ports.push_back(static_cast<uint16_t>(0xC000 + random.Below(12'000)));
  std::vector<LinuxRouter> out(leaves);
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    SwitchHashOptions options{HashFunction::kLinux, HashSelect::kThreshold, UINT32_MAX - leaf};
    const SwitchHash hash = *SwitchHash::Create(options);
    out[leaf].members = spines;
    const auto address = [](uint32_t of_leaf, uint32_t host) {
      return IpAddress::V4(0x0A010001 + (of_leaf << 8) + host);
    };
    for (uint32_t other = 0; other < leaves; ++other) {
      for (uint32_t host = 0; other != leaf && host < kHosts; ++host) {
        for (uint16_t port : ports) {
          const FiveTuple tuple = {address(leaf, host), address(other, host), port,
                                   kRoceTargetPort,     kProtocolUdp,         0};
          out[leaf].seen.push_back({tuple, static_cast<uint32_t>(hash.Select(tuple, spines))});
        }
      }
    }
  }
  return out;
}

// One thread searches, and its own processor time counts, so that other work beside it matters
// little.
void SearchForSeeds(uint32_t leaves, uint32_t spines) {
  constexpr uint32_t kSeeds = 1 << 25;
  const LinuxSeedSearch search(SeenOfLeaves(leaves, spines));
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  const auto found = search.SearchAll(UINT32_MAX - kSeeds, uint64_t{kSeeds} + 1);
  const double seconds = now() - begin;
  WEFT_CHECK(found.size() == leaves, found.size() << " of " << leaves << " seeds were found");
  const double rate = kSeeds / seconds;
  nlohmann::json row = {
      {"name", "paths"},
      {"case", "search for the seeds of " + std::to_string(leaves) + " leaves under " +
                   std::to_string(spines) + " spines: seeds tried in a second of one core"},
      {"ours", rate / 1e6},
      {"peer", 4294.967296 / 90},
      {"peer_name", "what tries all 2^32 by two cores in 45 s"},
      {"unit", "million"},
      {"ratio", rate / 1e6 / (4294.967296 / 90)},
      {"repeats", 1}};
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft::topology

int main(int argc, char** argv) {
  using namespace weft::topology;  // NOLINT: a program
  if (argc > 1 && absl::string_view(argv[1]) == "seeds") {
    for (uint32_t spines : {4, 3}) SearchForSeeds(4, spines);
    SearchForSeeds(16, 4);
    return 0;
  }
  absl::StatusOr<ClosSpec> spec = MegaScaleClos(1536);
  WEFT_CHECK(spec.ok(), spec.status());
  absl::StatusOr<Fabric> fabric = BuildClos(*spec);
  WEFT_CHECK(fabric.ok(), fabric.status());
  Bench bench(*std::move(fabric));
  bench.Run("12,288 NICs, ring of each rail, hosts scattered", bench.Rails(bench.Shuffled()), 1);
  bench.Run("12,288 NICs, random permutation", bench.Permutation(), 1);
  bench.Run("12,288 NICs, random permutation", bench.Permutation(), 4);
}
