#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/probe_commands.h"
#include "topology/discovery/fit_hash.h"
#include "topology/discovery/probed_flows.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/file.h"
#include "topology/host/affinity.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::Endpoint;
using topology::SeenNic;

constexpr int kFewPorts = 16;  // towards each of kMoreTargets hosts more, so that addresses differ
constexpr size_t kMoreTargets = 3;
constexpr uint32_t kChunk = 1 << 22;  // seeds that a rank tries at a time
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunk;
constexpr int64_t kAttempts = 3;  // at all seeds, each by other flows
constexpr int64_t kPolicyOneChunks = 4;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr absl::Duration kSearchersMeet = absl::Minutes(5);

const char kFooter[] =
    R"(Runs on the hosts of a job, as weft-topo discover does, with the folder that it wrote, which rank 0
reads: weft-run ... -- weft-topo learn-hash fabric. Of each switch with a choice the hash is found that
explains what its flows did: Linux's, its seed searched for by all ranks, or one of switch silicon's. It is
then checked with ports that were not probed before, and written into hashes.txt. What was not found, or does
not predict a share --right of those ports, is written as unknown.
Exit status: 0 when all hashes were found and predict fresh ports; 1 when not; 2 for wrong usage.)";

// The fabric, what is known of it, and which of its hosts the job's are.
struct Known {
  std::unique_ptr<topology::Fabric> fabric;
  topology::HashFile file;
  std::unique_ptr<topology::Routes> routes;
  std::map<SeenNic, Endpoint> endpoint;
};

absl::StatusOr<Known> Read(const std::string& fabric, const std::string& hashes,
                           const std::string& folder, const JobHosts& job) {
  Known out;
  WEFT_ASSIGN_OR_RETURN(topology::Fabric read,
                        topology::ReadFabric(fabric, absl::StrCat(folder, "/fabric.toml")));
  out.fabric = std::make_unique<topology::Fabric>(std::move(read));
  WEFT_ASSIGN_OR_RETURN(out.file,
                        topology::ParseHashFile(hashes, absl::StrCat(folder, "/hashes.txt")));
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(*out.fabric));
  out.routes = std::make_unique<topology::Routes>(*out.fabric);
  std::map<topology::IpAddress, Endpoint> by_address;
  for (const auto& [nic, address] : out.file.addresses) {
    WEFT_ASSIGN_OR_RETURN(NodeId host, out.fabric->Find(nic.first));
    by_address[address] = {host, nic.second};
  }
  for (size_t host = 0; host < job.hosts().size(); ++host) {
    const topology::SeenHost& seen = job.hosts()[host];
    for (size_t nic = 0; nic < seen.addresses.size(); ++nic) {
      auto found = by_address.find(seen.addresses[nic]);
      if (found == by_address.end()) {
        return absl::FailedPreconditionError(absl::StrCat(
            folder, "/hashes.txt is of other hosts: it has no NIC with address ",
            seen.addresses[nic].ToString(), ", of ", seen.name, "; run weft-topo discover first"));
      }
      out.endpoint[{static_cast<int>(host), static_cast<int>(nic)}] = found->second;
    }
  }
  return out;
}

int RoutersBetween(const Known& known, SeenNic source, SeenNic target) {
  return known.routes->Hops(known.endpoint.at(source), known.endpoint.at(target)) - 1;
}

NodeId LeafOf(const Known& known, SeenNic nic) {
  const topology::Fabric& fabric = *known.fabric;
  return fabric.link(fabric.Ports(known.endpoint.at(nic))[0]).target;
}

// Whom to probe, and how many ports: one NIC under each other leaf, and a few more. The k-th NIC
// under a leaf probes the k-th under another, so that both leaves see the same flows, which the
// search for Linux's seeds computes once.
std::vector<std::pair<SeenNic, int>> Targets(const Known& known, SeenNic own, int ports) {
  std::map<NodeId, std::vector<SeenNic>> by_leaf;
  size_t place = 0;  // under the own leaf
  std::vector<std::pair<SeenNic, int>> out;
  std::vector<SeenNic> others;
  for (const auto& [nic, _] : known.endpoint) {
    if (nic < own && LeafOf(known, nic) == LeafOf(known, own)) ++place;
    if (nic.host == own.host || RoutersBetween(known, own, nic) < 2) continue;
    by_leaf[LeafOf(known, nic)].push_back(nic);
    others.push_back(nic);
  }
  for (const auto& [_, nics] : by_leaf) out.emplace_back(nics[place % nics.size()], ports);
  for (size_t i = 0; i < std::min(kMoreTargets, others.size()); ++i) {
    const auto at = static_cast<size_t>(own.host) * 7 + i * 5 + 1;
    out.emplace_back(others[at % others.size()], std::min(ports, kFewPorts));
  }
  return out;
}

// Probes flows, none from a source port that it has probed the same target from before.
class Probing {
 public:
  Probing(JobHosts& job, const Known& known) : job_(job), known_(known) {}

  // Every rank. The flows of all hosts; a target that cannot be probed is told by rank 0.
  // `alike`: every host probes from the same ports.
  absl::StatusOr<std::vector<topology::ProbedFlow>> Flows(const std::string& what, int ports,
                                                          uint64_t salt, bool alike) {
    const json own = job_.own() >= 0 ? ProbeOwn(ports, salt, alike) : json();
    WEFT_ASSIGN_OR_RETURN(std::vector<json> all, job_.Exchange(what, own));
    std::vector<topology::ProbedFlow> out;
    asked_ = 0;
    for (size_t host = 0; host < all.size(); ++host) {
      asked_ += all[host]["asked"].get<int64_t>();
      for (const json& row : all[host]["flows"]) {
        out.push_back(Read(static_cast<int>(host), row));
      }
      if (job_.rank() > 0 || all[host]["failed"] == 0) continue;
      absl::FPrintF(stderr, "weft-topo: %s could not probe %d of its targets: %s\n",
                    job_.hosts()[host].name, all[host]["failed"].get<int>(),
                    all[host]["problem"].get<std::string>());
    }
    return out;
  }

  int64_t asked() const { return asked_; }  // flows of all hosts, in the last Flows()

 private:
  json ProbeOwn(int ports, uint64_t salt, bool alike) {
    json out = {{"flows", json::array()}, {"asked", 0}, {"failed", 0}, {"problem", ""}};
    for (const auto& [own, _] : known_.endpoint) {
      if (own.host != job_.own()) continue;
      for (const auto& [target, count] : Targets(known_, own, ports)) {
        std::set<uint16_t>& before = probed_[{own, target}];
        const std::vector<uint16_t> chosen =
            job_.DrawPorts(count, alike ? salt : ++salt, alike, before);
        before.insert(chosen.begin(), chosen.end());
        topology::TraceOptions options = job_.Options(own, target);
        options.named_flows = 0;
        out["asked"] = out["asked"].get<int64_t>() + count;
        absl::StatusOr<std::vector<topology::TracedFlow>> flows = topology::TraceFlows(
            options, RoutersBetween(known_, own, target), chosen, job_.statistics());
        if (!flows.ok()) {
          out["failed"] = out["failed"].get<int>() + 1;
          out["problem"] = std::string(flows.status().message());
          continue;
        }
        for (const topology::TracedFlow& flow : *flows) {
          out["flows"].push_back({own.nic, target.host, target.nic, flow.source_port,
                                  flow.recorded.empty() ? flow.answered : flow.recorded});
        }
      }
    }
    return out;
  }

  topology::ProbedFlow Read(int host, const json& row) const {
    const auto address = [&](SeenNic nic) {
      return job_.hosts()[static_cast<size_t>(nic.host)].addresses[static_cast<size_t>(nic.nic)];
    };
    const SeenNic source{host, row[0]}, target{row[1], row[2]};
    topology::ProbedFlow flow;
    flow.source = known_.endpoint.at(source);
    flow.target = known_.endpoint.at(target);
    flow.tuple = {address(source), address(target), row[3], job_.port(), topology::kProtocolUdp, 0};
    const auto names = row[4].get<std::vector<std::string>>();
    for (size_t i = 0; i + 1 < names.size(); ++i) {
      NodeId at;
      if (i == 0) {
        at = LeafOf(known_, source);
      } else if (auto name = known_.file.routers.find(names[i]);
                 name != known_.file.routers.end()) {
        if (auto node = known_.fabric->Find(name->second); node.ok()) at = *node;
      }
      flow.switches.push_back(at);
    }
    return flow;
  }

  JobHosts& job_;
  const Known& known_;
  std::map<std::pair<SeenNic, SeenNic>, std::set<uint16_t>> probed_;
  int64_t asked_ = 0;
};

// Fits the hashes of switch silicon to what some switches did, beside the search for seeds.
class SiliconFits {
 public:
  struct One {
    size_t number = 0;  // of the switch
    const topology::SwitchChoices* choices = nullptr;
  };
  SiliconFits(std::vector<One> all, double wrong)
      : all_(std::move(all)), wrong_(wrong), thread_([this] { Run(); }) {}
  ~SiliconFits() {
    ends_ = true;
    thread_.join();
  }
  SiliconFits(const SiliconFits&) = delete;
  SiliconFits& operator=(const SiliconFits&) = delete;

  // Number of the switch and hash, each once.
  std::vector<std::pair<size_t, topology::SwitchHash>> TakeFound() {
    std::lock_guard lock(mutex_);
    return std::exchange(found_, {});
  }
  bool done() const { return done_; }

 private:
  void Run() {
    std::vector<topology::SwitchHash> before;
    for (const One& one : all_) {
      if (ends_) break;
      auto fitted = topology::FitSilicon(static_cast<uint32_t>(one.choices->members.size()),
                                         one.choices->seen, before, wrong_, &ends_);
      if (!fitted.has_value()) continue;
      before.push_back(fitted->hash);
      std::lock_guard lock(mutex_);
      found_.emplace_back(one.number, fitted->hash);
    }
    done_ = true;
  }

  const std::vector<One> all_;
  const double wrong_;
  std::atomic<bool> ends_ = false, done_ = false;
  std::mutex mutex_;
  std::vector<std::pair<size_t, topology::SwitchHash>> found_;
  std::thread thread_;  // the last, as it uses all others
};

// The hashes of `wanted`, of those that are found. All ranks take part with all their cores:
// Linux's seeds in chunks, in order, so that small ones are found at once; when all were tried, by
// other flows again. Each host tries those of switch silicon for some of the switches meanwhile.
class HashSearch {
 public:
  HashSearch(JobHosts& job, const std::map<NodeId, topology::SwitchChoices>& switches,
             const std::vector<NodeId>& wanted, double wrong)
      : job_(job), switches_(switches), wanted_(wanted), wrong_(wrong) {}

  absl::StatusOr<std::map<NodeId, topology::SwitchHash>> Run(absl::Time deadline) {
    // The key is there before anybody looks.
    WEFT_RETURN_IF_ERROR(job_.store().Append(job_.Key("found"), "\n"));
    {
      SiliconFits silicon(OwnShare(), wrong_);
      WEFT_RETURN_IF_ERROR(SearchUntil(deadline, silicon));
    }
    WEFT_RETURN_IF_ERROR(
        job_.store().Barrier(job_.Key("searched"), job_.rank(), job_.ranks(), kSearchersMeet));
    WEFT_RETURN_IF_ERROR(ReadFound());
    return found_;
  }

 private:
  std::vector<SiliconFits::One> OwnShare() const {
    std::vector<SiliconFits::One> own;
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (static_cast<int>(i % job_.hosts().size()) != job_.own()) continue;
      own.push_back({i, &switches_.at(wanted_[i])});
    }
    return own;
  }

  absl::Status SearchUntil(absl::Time deadline, SiliconFits& silicon) {
    const auto threads =
        static_cast<int64_t>(std::max(1, AllowedCores() / std::max(1, job_.ranks_here())));
    SystemClock clock;
    bool any_chunk = true;
    while (clock.Now() < deadline) {
      // In this order: what is done has been taken then.
      const bool is_fitted = silicon.done();
      for (const auto& [number, hash] : silicon.TakeFound()) {
        WEFT_RETURN_IF_ERROR(TellFound(number, hash));
      }
      WEFT_RETURN_IF_ERROR(ReadFound());
      if (found_.size() == wanted_.size()) break;
      if (any_chunk) {
        WEFT_ASSIGN_OR_RETURN(const int64_t last, job_.store().Add(job_.Key("chunk"), threads));
        any_chunk = last - threads < kAttempts * kChunks;
        if (any_chunk) WEFT_RETURN_IF_ERROR(Search(last - threads, threads));
      } else if (is_fitted) {
        break;
      } else {
        absl::SleepFor(kLookEvery);
      }
    }
    return absl::OkStatus();
  }

  absl::Status TellFound(size_t number, const topology::SwitchHash& hash) {
    return job_.store().Append(job_.Key("found"),
                               absl::StrCat(number, " ", topology::HashText(hash.options()), "\n"));
  }

  // A line a switch: its number and its hash.
  absl::Status ReadFound() {
    WEFT_ASSIGN_OR_RETURN(const std::string text,
                          job_.store().Get(job_.Key("found"), absl::Seconds(10)));
    if (text == found_text_) return absl::OkStatus();
    found_text_ = text;
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
      size_t number = 0;
      if (!absl::SimpleAtoi(words.first, &number) || number >= wanted_.size()) {
        return absl::DataLossError(absl::StrCat("\"", line, "\" is no seed of a switch"));
      }
      WEFT_ASSIGN_OR_RETURN(topology::SwitchHash hash, topology::ParseHash(words.second));
      found_.try_emplace(wanted_[number], hash);
    }
    searches_.clear();
    return absl::OkStatus();
  }

  // By the flows of switches that are not found yet.
  const topology::LinuxSeedSearch& SearchOf(int64_t attempt) {
    auto known = searches_.find(attempt);
    if (known != searches_.end()) return known->second;
    std::vector<topology::LinuxRouter> routers;
    left_.clear();
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (found_.count(wanted_[i]) > 0) continue;
      const topology::SwitchChoices& one = switches_.at(wanted_[i]);
      routers.push_back({one.seen, static_cast<uint32_t>(one.members.size())});
      left_.push_back(i);
    }
    return searches_
        .try_emplace(attempt,
                     topology::LinuxSeedSearch(std::move(routers), static_cast<int>(attempt)))
        .first->second;
  }

  absl::Status Search(int64_t first, int64_t count) {
    std::vector<std::vector<topology::LinuxSeedSearch::Found>> results(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t chunk = first + i;
      const topology::LinuxSeedSearch& search = SearchOf(chunk / kChunks);
      auto& result = results[static_cast<size_t>(i)];
      threads.emplace_back([this, chunk, &search, &result] {
        const auto begin = static_cast<uint32_t>(chunk % kChunks * kChunk);
        for (int policy : {3, 1}) {
          // Policy 1 is tried for seeds that people set.
          if (policy == 1 && chunk >= kPolicyOneChunks) continue;
          auto found = search.SearchAll(begin, kChunk, policy, wrong_);
          result.insert(result.end(), found.begin(), found.end());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) {
      for (const topology::LinuxSeedSearch::Found& one : result) {
        WEFT_RETURN_IF_ERROR(TellFound(left_[one.router], one.hash));
      }
    }
    return absl::OkStatus();
  }

  JobHosts& job_;
  const std::map<NodeId, topology::SwitchChoices>& switches_;
  const std::vector<NodeId>& wanted_;
  const double wrong_;
  std::string found_text_;
  std::map<NodeId, topology::SwitchHash> found_;
  std::map<int64_t, topology::LinuxSeedSearch> searches_;  // by attempt
  std::vector<size_t> left_;                               // of wanted_, by number of the router
};

// What each switch hashes. Every rank comes to the same result.
class Learning {
 public:
  Learning(JobHosts& job, Known& known, absl::Time deadline, double wrong)
      : job_(job), known_(known), deadline_(deadline), wrong_(wrong) {}

  absl::Status Learn(const std::map<NodeId, topology::SwitchChoices>& switches) {
    std::vector<NodeId> wanted;
    for (const auto& [node, _] : switches) wanted.push_back(node);
    HashSearch search(job_, switches, wanted, wrong_);
    WEFT_ASSIGN_OR_RETURN(const auto found, search.Run(deadline_));
    for (const auto& [node, hash] : found) Fit(node, switches.at(node), hash);
    FitLikeOthers(switches);
    for (const auto& [node, one] : switches) Take(node, one);
    return absl::OkStatus();
  }

  const std::set<NodeId>& learned() const { return learned_; }

 private:
  // Mostly all switches are set alike.
  void FitLikeOthers(const std::map<NodeId, topology::SwitchChoices>& switches) {
    std::vector<topology::SwitchHash> known;
    for (const auto& [_, fitted] : fitted_) known.push_back(fitted.hash);
    for (const auto& [node, one] : switches) {
      for (size_t i = 0; i < known.size() && fitted_.count(node) == 0; ++i) {
        Fit(node, one, known[i]);
      }
    }
  }

  void Fit(NodeId node, const topology::SwitchChoices& one, const topology::SwitchHash& hash) {
    auto fitted =
        topology::TryHash(hash, static_cast<uint32_t>(one.members.size()), one.seen, wrong_);
    if (fitted.has_value()) fitted_.try_emplace(node, *std::move(fitted));
  }

  void Take(NodeId node, const topology::SwitchChoices& one) {
    const std::string& name = known_.fabric->node(node).name;
    known_.file.hashes.erase(name);
    known_.file.orders.erase(name);
    known_.file.unknown.erase(name);
    const auto found = fitted_.find(node);
    if (found == fitted_.end()) {
      known_.file.unknown.insert(name);
      if (job_.rank() == 0) {
        absl::PrintF("%-10s not found: no hash explains its %d flows\n", name, one.seen.size());
      }
      return;
    }
    const topology::FittedHash& fitted = found->second;
    learned_.insert(node);
    known_.file.hashes.insert_or_assign(name, fitted.hash);
    std::vector<std::string> order;
    bool same = true;
    for (size_t i = 0; i < fitted.member_at.size(); ++i) {
      order.push_back(known_.fabric->node(one.members[fitted.member_at[i]]).name);
      same = same && fitted.member_at[i] == i;
    }
    if (!same) known_.file.orders[name] = order;
    if (job_.rank() > 0) return;
    absl::PrintF("%-10s %s, %d of %d flows as it says; by chance 1 in 10^%.0f\n", name,
                 topology::HashText(fitted.hash.options()), fitted.right, one.seen.size(),
                 -fitted.chance_log10);
    std::fflush(stdout);
  }

  JobHosts& job_;
  Known& known_;
  const absl::Time deadline_;
  const double wrong_;
  std::map<NodeId, topology::FittedHash> fitted_;
  std::set<NodeId> learned_;
};

// The hashes of `known`, as if those that are still unknown were of no interest.
absl::StatusOr<topology::FabricHashes> HashesOf(const Known& known, const std::string& folder) {
  topology::HashFile file = known.file;
  file.unknown.clear();
  return topology::MakeHashes(*known.fabric, file, absl::StrCat(folder, "/hashes.txt"));
}

// Every rank: the two files of the folder, by name, as rank 0 reads them.
absl::StatusOr<std::map<std::string, std::string>> ReadFiles(JobHosts& job,
                                                             const std::filesystem::path& folder) {
  const auto read = [&]() -> absl::StatusOr<std::string> {
    json files = json::object();
    for (const char* name : {"fabric.toml", "hashes.txt"}) {
      WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile((folder / name).string()));
      files[name] = text;
    }
    return files.dump();
  };
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        job.FromRankZero("files", job.rank() == 0 ? read() : std::string()));
  return json::parse(text).get<std::map<std::string, std::string>>();
}

// Writes what was found, and as unknown what was not, or what the check does not bear out.
absl::Status Judge(const topology::PredictionCheck& check, const std::set<NodeId>& learned,
                   const std::map<NodeId, topology::SwitchChoices>& switches, double right_min,
                   const std::string& folder, Known& known) {
  const topology::Fabric& fabric = *known.fabric;
  const absl::Status verdict = check.Verdict(fabric, learned, right_min);
  std::vector<Endpoint> nics;
  for (const auto& [_, nic] : known.endpoint) nics.push_back(nic);
  std::vector<std::string> silent;
  for (NodeId node : topology::SwitchesWithChoice(*known.routes, nics)) {
    if (switches.count(node) == 0) silent.push_back(fabric.node(node).name);
  }
  const std::set<NodeId> failed = check.Failed(learned, right_min);
  const auto forget = [&](const std::string& name) {
    known.file.hashes.erase(name);
    known.file.orders.erase(name);
    known.file.unknown.insert(name);
  };
  for (NodeId node : failed) forget(fabric.node(node).name);
  for (const std::string& name : silent) forget(name);
  const std::string path = (std::filesystem::path(folder) / "hashes.txt").string();
  WEFT_RETURN_IF_ERROR(WriteOutput(path, topology::HashFileText(known.file)));
  std::vector<std::string> problems;
  for (const auto& [node, one] : switches) {
    if (learned.count(node) > 0) continue;
    problems.push_back(absl::StrCat("what ", fabric.node(node).name, " hashes was not found (of ",
                                    switches.size() - learned.size(),
                                    " switches): neither Linux's with a seed that was tried nor a "
                                    "known one of switch silicon"));
    break;
  }
  if (!silent.empty()) {
    problems.push_back(absl::StrCat("no flow told what ", silent.front(), " chooses (of ",
                                    silent.size(), " switches with a choice that told nothing)"));
  }
  if (!learned.empty() && !verdict.ok()) problems.emplace_back(verdict.message());
  if (problems.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(absl::StrJoin(problems, "; "), "; ", path, " says unknown of these switches"));
}

}  // namespace

LearnHashCommand::LearnHashCommand(CLI::App& app)
    : command_(app.add_subcommand("learn-hash",
                                  "Find what the switches between the hosts of a job hash")) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("FOLDER", folder_, "That weft-topo discover wrote")->required();
  words_.Declare(*command_);
  command_->add_option("--limit", limit_, "How long seeds are searched for, at most: 50s, 10m");
  command_->add_option("--wrong", wrong_, "Share of flows that a hash may fail to explain")
      ->check(CLI::Range(0.0, 0.3));
  command_
      ->add_option("--check-ports", check_ports_,
                   "Fresh source ports that a host probes towards each leaf at the end")
      ->check(CLI::Range(1, 4096));
  command_
      ->add_option("--right", right_,
                   "Share of fresh ports, and of each switch's choices for them, that must be as "
                   "predicted")
      ->check(CLI::Range(0.5, 1.0));
  command_->footer(kFooter);
}

absl::StatusOr<int> LearnHashCommand::Run() const {
  absl::Duration limit;
  if (!absl::ParseDuration(limit_, &limit) || limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit ", limit_, " is no duration; right are 50s and 10m"));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo learn-hash"));
  WEFT_RETURN_IF_ERROR(job->Conclude(Learn(*job, limit)));
  return EXIT_SUCCESS;
}

absl::Status LearnHashCommand::Learn(JobHosts& job, absl::Duration limit) const {
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const std::filesystem::path folder(folder_);
  WEFT_ASSIGN_OR_RETURN(const auto files, ReadFiles(job, folder));
  WEFT_ASSIGN_OR_RETURN(Known known,
                        Read(files.at("fabric.toml"), files.at("hashes.txt"), folder_, job));
  // What cannot be checked later is an error now.
  WEFT_RETURN_IF_ERROR(HashesOf(known, folder_).status());
  Probing probing(job, known);
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> seen,
                        probing.Flows("flows", words_.ports, 2000, true));
  const auto switches = topology::ChoicesOf(*known.routes, seen);
  if (switches.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of ", probing.asked(),
                     " flows told which way a switch chose: routers neither record routes nor "
                     "answer by the names that hashes.txt has"));
  }
  Learning learning(job, known, clock.Now() + limit, wrong_);
  WEFT_RETURN_IF_ERROR(learning.Learn(switches));
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> fresh,
                        probing.Flows("fresh", check_ports_, 5000, false));
  if (job.rank() > 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(topology::FabricHashes hashes, HashesOf(known, folder_));
  topology::PredictionCheck check =
      topology::CheckPredictions(*known.routes, hashes, learning.learned(), fresh);
  check.asked = probing.asked();
  absl::PrintF(
      "checked   %d of %d fresh ports take the path that is predicted (%.2f %%); %d were "
      "asked\n",
      check.flows.right, check.flows.told, 100 * check.flows.share(), check.asked);
  absl::PrintF("%d probes of this host, %d without an answer, in %.1f s\n", job.statistics().sent,
               job.statistics().lost, absl::ToDoubleSeconds(clock.Now() - begin));
  std::fflush(stdout);
  return Judge(check, learning.learned(), switches, right_, folder_, known);
}

}  // namespace weft::topo
