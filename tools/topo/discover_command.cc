#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "tools/topo/probe_commands.h"
#include "topology/fabric/file.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::SeenNic;

constexpr int kDistancePorts = 3;
constexpr size_t kDistancePeersMost = 512;  // that one NIC asks for their distance
constexpr int kProbeBytes = 100;            // on the wire, at most

const char kFooter[] = R"(Runs on the hosts of a job, a rank at least on each:
  weft-run -n 1 --nnodes 16 --node-rank K --master-addr h0 --master-port 29500 -- weft-topo discover --out fabric
or with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Rank 0 writes
OUT/fabric.toml and OUT/hashes.txt (the addresses). Nothing is guessed: what probes leave open is an error.
Exit status: 0; 1 when the fabric was not found; 2 for wrong usage.)";

// What one host's probes told, and which could not be sent.
struct Told {
  json rows = json::array();
  int failed = 0;
  std::string problem;  // the last
  void Fail(const absl::Status& why) {
    ++failed;
    problem = std::string(why.message());
  }
  json ToJson() const { return {{"rows", rows}, {"failed", failed}, {"problem", problem}}; }
};

// Every rank: the rows of all hosts, by host. Rank 0 tells of targets that could not be probed.
absl::StatusOr<std::vector<json>> ExchangeTold(JobHosts& job, const std::string& what,
                                               const Told& own) {
  WEFT_ASSIGN_OR_RETURN(std::vector<json> all, job.Exchange(what, own.ToJson()));
  std::vector<json> rows;
  for (size_t host = 0; host < all.size(); ++host) {
    rows.push_back(std::move(all[host]["rows"]));
    if (job.rank() > 0 || all[host]["failed"] == 0) continue;
    absl::FPrintF(stderr, "weft-topo: %s could not probe %d of its targets: %s\n",
                  job.hosts()[host].name, all[host]["failed"].get<int>(),
                  all[host]["problem"].get<std::string>());
  }
  return rows;
}

Told PairsOf(JobHosts& job) {
  Told out;
  if (job.own() < 0) return out;
  for (size_t nic = 0; nic < job.hosts()[static_cast<size_t>(job.own())].addresses.size(); ++nic) {
    const SeenNic own{job.own(), static_cast<int>(nic)};
    const size_t hosts = job.hosts().size();
    const size_t peers = std::min(hosts - 1, kDistancePeersMost);
    for (size_t step = 1; step <= peers; ++step) {
      const size_t other = (static_cast<size_t>(job.own()) + step) % hosts;
      if (nic >= job.hosts()[other].addresses.size()) continue;
      const SeenNic target{static_cast<int>(other), own.nic};
      absl::StatusOr<topology::Reached> reached = topology::Reach(
          job.Options(own, target), job.DrawPorts(kDistancePorts, step), job.statistics());
      if (!reached.ok()) out.Fail(reached.status());
      const bool heard = reached.ok() && reached->heard;
      out.rows.push_back({own.nic, other, heard, heard ? reached->routers : 0,
                          heard ? absl::ToDoubleMicroseconds(reached->rtt) : 0});
    }
  }
  return out;
}

void TakePairs(const std::vector<json>& all, topology::SeenFabric& seen) {
  for (size_t host = 0; host < all.size(); ++host) {
    for (const json& row : all[host]) {
      topology::SeenPair pair;
      pair.source = {static_cast<int>(host), row[0]};
      pair.target = {row[1], row[0]};
      pair.heard = row[2];
      pair.routers = row[3];
      pair.rtt = absl::Microseconds(row[4].get<double>());
      seen.pairs.push_back(pair);
    }
  }
}

// One target under each other leaf: NICs that are one router apart are under one. Neighbours take
// different ones.
std::vector<std::pair<SeenNic, int>> TargetsOf(const topology::SeenFabric& seen, SeenNic own) {
  std::map<SeenNic, SeenNic> leaf;  // the least NIC under it that was heard to be
  for (const topology::SeenPair& pair : seen.pairs) {
    for (SeenNic nic : {pair.source, pair.target}) leaf.try_emplace(nic, nic);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const topology::SeenPair& pair : seen.pairs) {
      if (!pair.heard || pair.routers > 1) continue;
      const SeenNic least = std::min(leaf[pair.source], leaf[pair.target]);
      changed = changed || leaf[pair.source] != least || leaf[pair.target] != least;
      leaf[pair.source] = leaf[pair.target] = least;
    }
  }
  std::map<SeenNic, std::vector<std::pair<SeenNic, int>>> by_leaf;
  for (const topology::SeenPair& pair : seen.pairs) {
    if (pair.source != own || !pair.heard || pair.routers < 2) continue;
    by_leaf[leaf[pair.target]].emplace_back(pair.target, pair.routers);
  }
  std::vector<std::pair<SeenNic, int>> out;
  for (const auto& [_, targets] : by_leaf) {
    out.push_back(targets[static_cast<size_t>(own.host) % targets.size()]);
  }
  return out;
}

Told FlowsOf(JobHosts& job, const topology::SeenFabric& seen, int ports) {
  Told out;
  if (job.own() < 0) return out;
  uint64_t salt = 1000;
  for (size_t nic = 0; nic < job.hosts()[static_cast<size_t>(job.own())].addresses.size(); ++nic) {
    const SeenNic own{job.own(), static_cast<int>(nic)};
    for (const auto& [target, routers] : TargetsOf(seen, own)) {
      absl::StatusOr<std::vector<topology::TracedFlow>> flows = topology::TraceFlows(
          job.Options(own, target), routers, job.DrawPorts(ports, ++salt), job.statistics());
      if (!flows.ok()) {
        out.Fail(flows.status());
        continue;
      }
      for (const topology::TracedFlow& flow : *flows) {
        out.rows.push_back(
            {own.nic, target.host, target.nic, flow.source_port, flow.recorded, flow.answered});
      }
    }
  }
  return out;
}

absl::Status Write(const topology::InferredFabric& found, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("make folder ", folder));
  std::string notes = "# Found by weft-topo discover.\n";
  for (const std::string& note : found.notes) absl::StrAppend(&notes, "# ", note, "\n");
  const std::filesystem::path path(folder);
  WEFT_RETURN_IF_ERROR(WriteOutput((path / "fabric.toml").string(),
                                   absl::StrCat(notes, topology::WriteFabric(found.fabric))));
  return WriteOutput((path / "hashes.txt").string(), topology::HashFileText(found.known));
}

}  // namespace

DiscoverCommand::DiscoverCommand(CLI::App& app)
    : command_(
          app.add_subcommand("discover", "Find the fabric between the hosts of a job, by probes")) {
  command_->option_defaults()->always_capture_default();
  words_.Declare(*command_);
  command_->add_option("-o,--out", out_, "Folder for fabric.toml and hashes.txt");
  command_->add_option("--switch-bandwidth", switch_bandwidth_,
                       "Of cables between switches, 100Gbps; empty: that of NICs");
  command_
      ->add_option("--missed", missed_,
                   "Chance of a path that no probe took, at most, of any pair of leaves")
      ->check(CLI::Range(1e-12, 1.0));
  command_->footer(kFooter);
}

absl::StatusOr<int> DiscoverCommand::Run() const {
  topology::InferOptions options;
  options.missed_max = missed_;
  if (!switch_bandwidth_.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.switch_bandwidth, ParseBandwidth(switch_bandwidth_));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo discover"));
  WEFT_RETURN_IF_ERROR(job->Conclude(Discover(*job, options)));
  return EXIT_SUCCESS;
}

absl::Status DiscoverCommand::Discover(JobHosts& job, const topology::InferOptions& options) const {
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const size_t hosts = job.hosts().size();
  if (job.rank() == 0) {
    absl::PrintF("%d hosts; each sends at most %d probes, of up to %d bytes\n", hosts,
                 words_.rounds *
                     (kDistancePorts * static_cast<int>(std::min(hosts - 1, kDistancePeersMost)) +
                      words_.ports * static_cast<int>(hosts - 1) * 4),
                 kProbeBytes);
    std::fflush(stdout);
  }
  topology::SeenFabric seen;
  seen.hosts = job.hosts();
  WEFT_ASSIGN_OR_RETURN(std::vector<json> pairs, ExchangeTold(job, "pairs", PairsOf(job)));
  TakePairs(pairs, seen);
  WEFT_ASSIGN_OR_RETURN(std::vector<json> flows,
                        ExchangeTold(job, "flows", FlowsOf(job, seen, words_.ports)));
  for (size_t host = 0; host < flows.size(); ++host) {
    for (const json& row : flows[host]) {
      seen.flows.push_back({{static_cast<int>(host), row[0]},
                            {row[1], row[2]},
                            row[3],
                            static_cast<uint16_t>(words_.port),
                            row[4].get<std::vector<std::string>>(),
                            row[5].get<std::vector<std::string>>()});
    }
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<json> counts,
                        job.Exchange("counts", json{job.statistics().sent, job.statistics().lost}));
  absl::Status status;
  if (job.rank() == 0) {
    absl::StatusOr<topology::InferredFabric> found = topology::InferFabric(seen, options);
    status = found.ok() ? Write(*found, out_) : found.status();
    int64_t sent = 0, lost = 0;
    for (const json& one : counts) {
      sent += one[0].get<int64_t>();
      lost += one[1].get<int64_t>();
    }
    absl::PrintF("%d probes, %d of them without an answer, in %.1f s\n", sent, lost,
                 absl::ToDoubleSeconds(clock.Now() - begin));
    if (status.ok()) {
      for (const std::string& note : found->notes) absl::PrintF("%s\n", note);
      absl::PrintF("written: %s/fabric.toml, %s/hashes.txt\n", out_, out_);
    }
  }
  return status;
}

}  // namespace weft::topo
