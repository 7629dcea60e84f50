#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/command.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/topo/probe_commands.h"
#include "topology/fabric/file.h"
#include "topology/fabric/import/import.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::SeenNic;

constexpr int kDistancePorts = 3;
constexpr size_t kDistancePeersMost = 512;  // that one NIC asks for their distance
constexpr size_t kOtherRailPeers = 8;       // that one NIC asks at their other NICs
constexpr int kOtherRailTries = 2;          // without an answer, of one number of NIC
constexpr int kProbeBytes = 100;            // on the wire, at most
constexpr int kQuestionsOfFlow = 4;         // its record, and three switches
constexpr absl::Duration kLldpMost = absl::Seconds(5);

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

// Every rank: the rows of all hosts, by host. Rank 0 tells of what failed.
absl::StatusOr<std::vector<json>> ExchangeTold(JobHosts& job, const std::string& what,
                                               const Told& own) {
  WEFT_ASSIGN_OR_RETURN(std::vector<json> all, job.Exchange(what, own.ToJson()));
  std::vector<json> rows;
  for (size_t host = 0; host < all.size(); ++host) {
    rows.push_back(std::move(all[host]["rows"]));
    if (job.rank() > 0 || all[host]["failed"] == 0) continue;
    absl::FPrintF(stderr, "weft-topo: %s: %d %s failed: %s\n", job.hosts()[host].name,
                  all[host]["failed"].get<int>(), what, all[host]["problem"].get<std::string>());
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
    std::map<size_t, int> unreached;  // hosts, by their NIC
    for (size_t step = 1; step <= peers; ++step) {
      const size_t other = (static_cast<size_t>(job.own()) + step) % hosts;
      // NICs of other numbers may be under the same leaf, which a few hosts tell; they may also be
      // on a rail that this NIC cannot reach, which is no failure.
      for (size_t there = 0; there < job.hosts()[other].addresses.size(); ++there) {
        const bool is_same_rail = there == nic;
        if (!is_same_rail && (step > kOtherRailPeers || unreached[there] >= kOtherRailTries)) {
          continue;
        }
        const SeenNic target{static_cast<int>(other), static_cast<int>(there)};
        absl::StatusOr<topology::Reached> reached = topology::Reach(
            job.Options(own, target), job.DrawPorts(kDistancePorts, step), job.statistics());
        if (!reached.ok()) out.Fail(reached.status());
        const bool heard = reached.ok() && reached->heard;
        if (!is_same_rail && !heard) {
          ++unreached[there];
          continue;
        }
        out.rows.push_back({own.nic, other, there, heard, heard ? reached->routers : 0,
                            heard ? absl::ToDoubleMicroseconds(reached->rtt) : 0});
      }
    }
  }
  return out;
}

void TakePairs(const std::vector<json>& all, topology::SeenFabric& seen) {
  for (size_t host = 0; host < all.size(); ++host) {
    for (const json& row : all[host]) {
      topology::SeenPair pair;
      pair.source = {static_cast<int>(host), row[0]};
      pair.target = {row[1], row[2]};
      pair.heard = row[3];
      pair.routers = row[4];
      pair.rtt = absl::Microseconds(row[5].get<double>());
      seen.pairs.push_back(pair);
    }
  }
}

// One target under each other leaf. Neighbours take different ones.
std::vector<std::pair<SeenNic, int>> TargetsOf(const topology::SeenFabric& seen, SeenNic own) {
  const std::map<SeenNic, int> leaf = topology::LeavesOf(seen);
  std::map<int, std::vector<std::pair<SeenNic, int>>> by_leaf;
  for (const topology::SeenPair& pair : seen.pairs) {
    if (pair.source != own || !pair.heard || pair.routers < 2) continue;
    by_leaf[leaf.at(pair.target)].emplace_back(pair.target, pair.routers);
  }
  std::vector<std::pair<SeenNic, int>> out;
  for (const auto& [_, targets] : by_leaf) {
    out.push_back(targets[static_cast<size_t>(own.host) % targets.size()]);
  }
  return out;
}

// The switches that LLDP names at this host's NICs. A host where no lldpd answers says nothing.
Told LldpOf(JobHosts& job) {
  Told out;
  if (job.own() < 0) return out;
  const std::string& name = job.hosts()[static_cast<size_t>(job.own())].name;
  absl::StatusOr<CommandOutput> said = RunCommand({"lldpctl", "-f", "json"}, kLldpMost);
  if (absl::IsNotFound(said.status())) return out;
  if (said.ok() && said->status != 0) {
    said = absl::UnavailableError(absl::StrCat("lldpctl ended with status ", said->status, ": ",
                                               absl::StripAsciiWhitespace(said->text)));
  }
  if (!said.ok()) {
    out.Fail(said.status());
    return out;
  }
  auto switches = topology::LldpSwitches(said->text, name);
  if (!switches.ok()) {
    out.Fail(switches.status());
    return out;
  }
  for (size_t nic = 0; nic < job.interfaces().size(); ++nic) {
    auto found = switches->find(job.interfaces()[nic]);
    if (found != switches->end()) out.rows.push_back({nic, found->second});
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
      topology::TraceOptions options = job.Options(own, target);
      options.gives_up = true;
      absl::StatusOr<std::vector<topology::TracedFlow>> flows =
          topology::TraceFlows(options, routers, job.DrawPorts(ports, ++salt), job.statistics());
      out.rows.push_back({own.nic, target.host, target.nic, ports});
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

// "100Gbps,spine1=50Gbps".
absl::Status TakeBandwidths(const std::string& text, topology::InferOptions& options) {
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const size_t equals = word.rfind('=');
    const bool is_of_one = equals != absl::string_view::npos;
    WEFT_ASSIGN_OR_RETURN(const Bandwidth bandwidth,
                          ParseBandwidth(is_of_one ? word.substr(equals + 1) : word));
    if (is_of_one) {
      options.bandwidth_below[std::string(word.substr(0, equals))] = bandwidth;
    } else {
      options.switch_bandwidth = bandwidth;
    }
  }
  return absl::OkStatus();
}

struct FolderFiles {
  explicit FolderFiles(const std::filesystem::path& folder)
      : fabric((folder / "fabric.toml").string()), hashes((folder / "hashes.txt").string()) {}
  std::string fabric, hashes;
};

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("make folder ", folder))
               : absl::OkStatus();
}

// Whether the folder's files can be written. A folder that is missing is not there afterwards.
absl::Status TryFolder(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;  // innermost first
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  absl::Status status = MakeFolder(folder);
  const FolderFiles files(folder);
  for (const std::string& file : {files.fabric, files.hashes}) {
    if (status.ok()) status = CheckOutput(file);
  }
  for (const std::filesystem::path& made : missing) std::filesystem::remove(made, error);
  return status;
}

absl::Status Write(const topology::InferredFabric& found, const std::string& folder) {
  std::string notes = "# Found by weft-topo discover.\n";
  for (const std::string& note : found.notes) absl::StrAppend(&notes, "# ", note, "\n");
  WEFT_RETURN_IF_ERROR(MakeFolder(folder));
  const FolderFiles files(folder);
  WEFT_RETURN_IF_ERROR(
      WriteOutput(files.fabric, absl::StrCat(notes, topology::WriteFabric(found.fabric))));
  return WriteOutput(files.hashes, topology::HashFileText(found.known));
}

}  // namespace

DiscoverCommand::DiscoverCommand(CLI::App& app)
    : command_(
          app.add_subcommand("discover", "Find the fabric between the hosts of a job, by probes")) {
  command_->option_defaults()->always_capture_default();
  words_.Declare(*command_);
  command_->add_option("-o,--out", out_, "Folder for fabric.toml and hashes.txt");
  command_
      ->add_option("--switch-bandwidth", switch_bandwidth_,
                   "Of cables between switches, 100Gbps, and of those below one of them, "
                   "100Gbps,spine1=50Gbps; empty: what loads tell, else that of NICs")
      ->check([](const std::string& text) {
        topology::InferOptions options;
        return std::string(TakeBandwidths(text, options).message());
      });
  command_
      ->add_option("--missed", missed_,
                   "Highest chance, for any pair of leaves, that a path was taken by no probe")
      ->check(RealRange(1e-12, 1));
  command_
      ->add_option(
          "--lldp", lldp_,
          "Take the leaf of each NIC from LLDP where lldpctl answers on its host (auto), or "
          "from probes alone (never)")
      ->check(CLI::IsMember({"auto", "never"}));
  load_.Declare(*command_);
  command_->footer(kFooter);
}

absl::StatusOr<int> DiscoverCommand::Run() const {
  topology::InferOptions options;
  options.missed_max = missed_;
  WEFT_RETURN_IF_ERROR(TakeBandwidths(switch_bandwidth_, options));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo discover"));
  WEFT_RETURN_IF_ERROR(job->Conclude(Discover(*job, options)));
  return EXIT_SUCCESS;
}

absl::StatusOr<topology::SeenFabric> DiscoverCommand::Look(JobHosts& job) const {
  topology::SeenFabric seen;
  seen.hosts = job.hosts();
  if (lldp_ == "auto") {
    WEFT_ASSIGN_OR_RETURN(std::vector<json> named, ExchangeTold(job, "LLDP", LldpOf(job)));
    for (size_t host = 0; host < named.size(); ++host) {
      for (const json& row : named[host]) {
        seen.neighbors[{static_cast<int>(host), row[0]}] = row[1].get<std::string>();
      }
    }
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<json> pairs, ExchangeTold(job, "pairs", PairsOf(job)));
  TakePairs(pairs, seen);
  WEFT_ASSIGN_OR_RETURN(std::vector<json> flows,
                        ExchangeTold(job, "flows", FlowsOf(job, seen, words_.ports)));
  for (size_t host = 0; host < flows.size(); ++host) {
    for (const json& row : flows[host]) {
      const SeenNic source{static_cast<int>(host), row[0]}, target{row[1], row[2]};
      if (row.size() == 4) {
        seen.asked.push_back({source, target, row[3]});
        continue;
      }
      seen.flows.push_back({source, target, row[3], job.port(),
                            row[4].get<std::vector<std::string>>(),
                            row[5].get<std::vector<std::string>>()});
    }
  }
  return seen;
}

absl::Status DiscoverCommand::Discover(JobHosts& job, const topology::InferOptions& options) const {
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const size_t hosts = job.hosts().size();
  // Before the probes, which would be lost.
  WEFT_RETURN_IF_ERROR(job.TryOnRankZero("folder", [this] { return TryFolder(out_); }));
  WEFT_ASSIGN_OR_RETURN(LoadProbing load, LoadProbing::Make(job, load_, words_.ports));
  if (job.rank() == 0) {
    const int peers = static_cast<int>(std::min(hosts - 1, kDistancePeersMost));
    const auto leaves = static_cast<int64_t>(hosts - 1);  // of others, at most
    const auto nics = static_cast<int64_t>(job.interfaces().size());
    const int64_t most =
        nics * words_.rounds *
        (kDistancePorts * (peers + (nics - 1) * std::min<int64_t>(peers, kOtherRailPeers)) +
         words_.ports * leaves * kQuestionsOfFlow);
    absl::PrintF(
        "%d hosts; each sends at most %d probes, of up to %d bytes, and waits at most %s "
        "for each: %s were all lost\n",
        hosts, most, kProbeBytes, absl::FormatDuration(job.timeout()),
        absl::FormatDuration(most * job.timeout()));
    std::fflush(stdout);
  }
  WEFT_ASSIGN_OR_RETURN(topology::SeenFabric seen, Look(job));
  WEFT_ASSIGN_OR_RETURN(std::vector<json> counts,
                        job.Exchange("counts", json{job.statistics().sent, job.statistics().lost}));
  int64_t sent = 0, lost = 0;
  for (const json& one : counts) {
    sent += one[0].get<int64_t>();
    lost += one[1].get<int64_t>();
  }
  if (job.rank() == 0) {
    absl::PrintF("%d probes, %d of them without an answer, in %.1f s\n", sent, lost,
                 absl::ToDoubleSeconds(clock.Now() - begin));
  }
  std::optional<topology::InferredFabric> found;
  const auto infer = [&]() -> absl::Status {
    if (job.rank() > 0) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(found, topology::InferFabric(seen, options));
    return absl::OkStatus();
  };
  absl::Status status = infer();
  // All go on together, or nobody does.
  const bool needs_load = absl::IsUnavailable(status) && load_.when != "never";
  absl::StatusOr<std::string> next = std::string();
  if (needs_load) {
    next = "count";
  } else if (!status.ok()) {
    next = status;
  } else if (load_.when == "always") {
    next = "measure";
  }
  WEFT_ASSIGN_OR_RETURN(const std::string goes_on, job.FromRankZero("goes on", next));
  if (!goes_on.empty()) {
    if (job.rank() == 0 && needs_load) absl::PrintF("%s\n", status.message());
    const absl::Status counted =
        goes_on == "count" ? load.CountPaths(seen) : load.MeasurePaths(seen);
    if (job.rank() == 0) {
      absl::PrintF("%d loads, %.3g MB, in %.1f s\n", load.loads(),
                   static_cast<double>(load.sent().count()) / 1e6,
                   absl::ToDoubleSeconds(clock.Now() - begin));
    }
    WEFT_RETURN_IF_ERROR(counted);
    status = infer();
  }
  if (job.rank() > 0) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(status);
  WEFT_RETURN_IF_ERROR(Write(*found, out_));
  for (const std::string& note : found->notes) absl::PrintF("%s\n", note);
  absl::PrintF("written: %s/fabric.toml, %s/hashes.txt\n", out_, out_);
  return absl::OkStatus();
}

}  // namespace weft::topo
