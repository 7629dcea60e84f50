#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/probe_commands.h"
#include "topology/discovery/learn_box.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/file.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::Endpoint;
using topology::HashObservation;
using topology::SeenNic;

constexpr int kFewPorts = 16;  // towards each of kMoreTargets hosts more, so that addresses differ
constexpr size_t kMoreTargets = 3;
constexpr int kCheckPorts = 32;            // of each host, fresh ones
constexpr uint32_t kChunk = 1 << 22;       // seeds that a rank tries at a time
constexpr uint64_t kQuickSeeds = 1 << 16;  // that rank 0 tries alone
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunk;

const char kFooter[] =
    R"(Runs on the hosts of a job, as weft-topo discover does, with the folder that it wrote, which rank 0
reads: weft-run ... -- weft-topo learn-hash fabric. Of each switch with a choice the hash is found that
explains what its flows did: Linux's, its seed searched for by all ranks, or one of switch silicon's. It is
then checked with ports that were not probed before, and written into hashes.txt.
Exit status: 0 when all hashes were found; 1 when not, and those that were are written; 2 for wrong usage.)";

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

// Whom to probe, and how many ports: one NIC under each other leaf, and a few more.
std::vector<std::pair<SeenNic, int>> Targets(const Known& known, SeenNic own, int ports) {
  std::map<NodeId, std::vector<SeenNic>> by_leaf;
  std::vector<std::pair<SeenNic, int>> out;
  std::vector<SeenNic> others;
  for (const auto& [nic, _] : known.endpoint) {
    if (nic.host == own.host || RoutersBetween(known, own, nic) < 2) continue;
    by_leaf[LeafOf(known, nic)].push_back(nic);
    others.push_back(nic);
  }
  for (const auto& [_, nics] : by_leaf) {
    out.emplace_back(nics[static_cast<size_t>(own.host) % nics.size()], ports);
  }
  for (size_t i = 0; i < std::min(kMoreTargets, others.size()); ++i) {
    const auto at = static_cast<size_t>(own.host) * 7 + i * 5 + 1;
    out.emplace_back(others[at % others.size()], std::min(ports, kFewPorts));
  }
  return out;
}

json ProbeFlows(JobHosts& job, const Known& known, int ports, uint64_t salt) {
  json out = json::array();
  for (const auto& [own, _] : known.endpoint) {
    if (own.host != job.own()) continue;
    for (const auto& [target, count] : Targets(known, own, ports)) {
      topology::TraceOptions options = job.Options(own, target);
      options.named_flows = 0;
      absl::StatusOr<std::vector<topology::TracedFlow>> flows =
          topology::TraceFlows(options, RoutersBetween(known, own, target),
                               job.DrawPorts(count, ++salt), job.statistics());
      if (!flows.ok()) continue;
      for (const topology::TracedFlow& flow : *flows) {
        out.push_back({own.nic, target.host, target.nic, flow.source_port,
                       flow.recorded.empty() ? flow.answered : flow.recorded});
      }
    }
  }
  return out;
}

struct Flow {
  Endpoint source, target;
  topology::FiveTuple tuple;
  std::vector<NodeId> switches;  // [position]; NodeId(): not known
};

std::vector<Flow> ReadFlows(const JobHosts& job, const Known& known, const std::vector<json>& all,
                            uint16_t target_port) {
  std::vector<Flow> out;
  const auto address = [&](SeenNic nic) {
    return job.hosts()[static_cast<size_t>(nic.host)].addresses[static_cast<size_t>(nic.nic)];
  };
  for (size_t host = 0; host < all.size(); ++host) {
    for (const json& row : all[host]) {
      const SeenNic source{static_cast<int>(host), row[0]}, target{row[1], row[2]};
      Flow flow;
      flow.source = known.endpoint.at(source);
      flow.target = known.endpoint.at(target);
      flow.tuple = {address(source), address(target),        row[3],
                    target_port,     topology::kProtocolUdp, 0};
      const auto names = row[4].get<std::vector<std::string>>();
      for (size_t i = 0; i + 1 < names.size(); ++i) {
        NodeId at;
        if (i == 0) {
          at = LeafOf(known, source);
        } else if (auto name = known.file.routers.find(names[i]);
                   name != known.file.routers.end()) {
          if (auto node = known.fabric->Find(name->second); node.ok()) at = *node;
        }
        flow.switches.push_back(at);
      }
      out.push_back(std::move(flow));
    }
  }
  return out;
}

// What one switch did.
struct SeenSwitch {
  std::vector<NodeId> members;  // in the order of the fabric
  std::vector<HashObservation> seen;
};

std::map<NodeId, SeenSwitch> BySwitch(const Known& known, const std::vector<Flow>& flows) {
  std::map<NodeId, SeenSwitch> out;
  for (const Flow& flow : flows) {
    for (size_t i = 0; i + 1 < flow.switches.size(); ++i) {
      const NodeId at = flow.switches[i], after = flow.switches[i + 1];
      if (at == NodeId() || after == NodeId()) continue;
      std::vector<NodeId> members;
      for (LinkId link : known.routes->Next(at, flow.target)) {
        members.push_back(known.fabric->link(link).target);
      }
      auto member = std::find(members.begin(), members.end(), after);
      if (members.size() < 2 || member == members.end()) continue;
      SeenSwitch& one = out[at];
      if (one.members.empty()) one.members = members;
      if (one.members != members) continue;  // another group of next hops
      one.seen.push_back({flow.tuple, static_cast<uint32_t>(member - members.begin())});
    }
  }
  return out;
}

// All ranks take part: seeds in chunks, in order, so that small ones are found at once.
absl::StatusOr<std::optional<topology::SwitchHash>> SearchSeed(JobHosts& job, const SeenSwitch& one,
                                                               const std::string& name,
                                                               absl::Time deadline, double wrong) {
  const topology::LinuxSeedSearch search(one.seen, static_cast<uint32_t>(one.members.size()));
  const std::string chunk_key = job.Key("chunk/" + name), found_key = job.Key("found/" + name);
  SystemClock clock;
  while (clock.Now() < deadline) {
    WEFT_ASSIGN_OR_RETURN(const bool found, job.store().Check({found_key}));
    if (found) break;
    WEFT_ASSIGN_OR_RETURN(const int64_t next, job.store().Add(chunk_key, 1));
    if (next > kChunks) break;
    const auto first = static_cast<uint32_t>((next - 1) * kChunk);
    for (int policy : {3, 1}) {
      // Policy 1 is tried for seeds that people set.
      if (policy == 1 && next > 4) continue;
      std::optional<topology::SwitchHash> hash = search.Search(first, kChunk, policy, wrong);
      if (!hash.has_value()) continue;
      WEFT_RETURN_IF_ERROR(job.store().Set(found_key, topology::HashText(hash->options())));
      break;
    }
  }
  WEFT_RETURN_IF_ERROR(
      job.store().Barrier(job.Key("searched/" + name), job.rank(), job.ranks(), absl::Minutes(5)));
  WEFT_ASSIGN_OR_RETURN(const bool found, job.store().Check({found_key}));
  if (!found) return std::optional<topology::SwitchHash>();
  WEFT_ASSIGN_OR_RETURN(const std::string text, job.store().Get(found_key, absl::Seconds(10)));
  WEFT_ASSIGN_OR_RETURN(topology::SwitchHash hash, topology::ParseHash(text));
  return std::optional<topology::SwitchHash>(hash);
}

class Learning {
 public:
  Learning(JobHosts& job, Known& known, absl::Time deadline, double wrong)
      : job_(job), known_(known), deadline_(deadline), wrong_(wrong) {}

  // Every rank. Rank 0 decides what is tried; the others help to search.
  absl::Status Learn(const std::map<NodeId, SeenSwitch>& switches) {
    for (const auto& [node, one] : switches) {
      const std::string& name = known_.fabric->node(node).name;
      std::optional<topology::FittedHash> fitted;
      if (job_.rank() == 0) {
        fitted = Quick(one);
        WEFT_RETURN_IF_ERROR(
            job_.store().Set(job_.Key("task/" + name), fitted.has_value() ? "none" : "search"));
      }
      WEFT_ASSIGN_OR_RETURN(const std::string task,
                            job_.store().Get(job_.Key("task/" + name), absl::Minutes(5)));
      if (task == "search") {
        WEFT_ASSIGN_OR_RETURN(std::optional<topology::SwitchHash> hash,
                              SearchSeed(job_, one, name, deadline_, wrong_));
        if (hash.has_value()) {
          fitted =
              topology::TryHash(*hash, static_cast<uint32_t>(one.members.size()), one.seen, wrong_);
        }
      }
      if (job_.rank() == 0) Take(name, one, fitted);
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  // Those of other switches first: mostly all are set alike.
  std::optional<topology::FittedHash> Quick(const SeenSwitch& one) const {
    const auto members = static_cast<uint32_t>(one.members.size());
    return topology::ExplainSwitch(members, one.seen, found_, kQuickSeeds, wrong_);
  }

  void Take(const std::string& name, const SeenSwitch& one,
            const std::optional<topology::FittedHash>& fitted) {
    known_.file.hashes.erase(name);
    known_.file.orders.erase(name);
    known_.file.unknown.erase(name);
    if (!fitted.has_value()) {
      absl::PrintF("%-10s not found: no hash explains its %d flows\n", name, one.seen.size());
      unknown_.push_back(name);
      known_.file.unknown.insert(name);
      return;
    }
    found_.push_back(fitted->hash);
    known_.file.hashes.insert_or_assign(name, fitted->hash);
    std::vector<std::string> order;
    bool same = true;
    for (size_t i = 0; i < fitted->member_at.size(); ++i) {
      order.push_back(known_.fabric->node(one.members[fitted->member_at[i]]).name);
      same = same && fitted->member_at[i] == i;
    }
    if (!same) known_.file.orders[name] = order;
    absl::PrintF("%-10s %s, %d of %d flows as it says; by chance 1 in 10^%.0f\n", name,
                 topology::HashText(fitted->hash.options()), fitted->right, one.seen.size(),
                 -fitted->chance_log10);
    std::fflush(stdout);
  }

  JobHosts& job_;
  Known& known_;
  const absl::Time deadline_;
  const double wrong_;
  std::vector<topology::SwitchHash> found_;
  std::vector<std::string> unknown_;
};

// Of fresh flows, how many take the path that the hashes say: right, all.
absl::StatusOr<std::pair<int, int>> Check(const Known& known, const std::vector<Flow>& flows,
                                          const std::string& origin) {
  topology::HashFile file = known.file;
  file.unknown.clear();
  WEFT_ASSIGN_OR_RETURN(topology::FabricHashes hashes,
                        topology::MakeHashes(*known.fabric, file, origin));
  std::pair<int, int> out{0, 0};
  for (const Flow& flow : flows) {
    WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> path,
                          hashes.Path(*known.routes, flow.source, flow.target, flow.tuple));
    bool right = true;
    for (size_t i = 0; i < flow.switches.size() && i < path.size(); ++i) {
      const bool is_known = flow.switches[i] != NodeId();
      right = right && (!is_known || known.fabric->link(path[i]).target == flow.switches[i]);
    }
    out.first += right ? 1 : 0;
    ++out.second;
  }
  return out;
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
  command_->footer(kFooter);
}

absl::StatusOr<int> LearnHashCommand::Run() const {
  absl::Duration limit;
  if (!absl::ParseDuration(limit_, &limit) || limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit ", limit_, " is no duration; right are 50s and 10m"));
  }
  SystemClock clock;
  const absl::Time begin = clock.Now();
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo learn-hash"));
  const std::filesystem::path folder(folder_);
  json files = json::object();
  if (job->rank() == 0) {
    for (const char* name : {"fabric.toml", "hashes.txt"}) {
      absl::StatusOr<std::string> text = ReadFile((folder / name).string());
      files[text.ok() ? name : "error"] = text.ok() ? *text : std::string(text.status().message());
    }
    WEFT_RETURN_IF_ERROR(job->store().Set(job->Key("files"), files.dump()));
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, job->store().Get(job->Key("files"), absl::Minutes(2)));
  files = json::parse(text);
  if (files.contains("error")) return absl::NotFoundError(files["error"].get<std::string>());
  WEFT_ASSIGN_OR_RETURN(Known known, Read(files["fabric.toml"].get<std::string>(),
                                          files["hashes.txt"].get<std::string>(), folder_, *job));
  const auto port = static_cast<uint16_t>(words_.port);
  const auto flows = [&](const std::string& what, int ports,
                         uint64_t salt) -> absl::StatusOr<std::vector<Flow>> {
    WEFT_ASSIGN_OR_RETURN(
        std::vector<json> all,
        job->Exchange(what, job->own() >= 0 ? ProbeFlows(*job, known, ports, salt) : json()));
    return ReadFlows(*job, known, all, port);
  };
  WEFT_ASSIGN_OR_RETURN(std::vector<Flow> seen, flows("flows", words_.ports, 2000));
  const std::map<NodeId, SeenSwitch> switches = BySwitch(known, seen);
  Learning learning(*job, known, clock.Now() + limit, wrong_);
  absl::Status status = learning.Learn(switches);
  WEFT_RETURN_IF_ERROR(status);
  WEFT_ASSIGN_OR_RETURN(std::vector<Flow> fresh, flows("fresh", kCheckPorts, 5000));
  if (job->rank() == 0) {
    if (switches.empty()) {
      status = absl::FailedPreconditionError(
          "no probe told which way a switch chose: routers neither record routes nor answer");
    } else {
      absl::StatusOr<std::pair<int, int>> right = Check(known, fresh, folder_);
      if (!right.ok()) return right.status();
      absl::PrintF("checked   %d of %d fresh ports take the path that is predicted\n", right->first,
                   right->second);
      absl::PrintF("%d probes of this host, %d without an answer, in %.1f s\n",
                   job->statistics().sent, job->statistics().lost,
                   absl::ToDoubleSeconds(clock.Now() - begin));
      status = WriteOutput((folder / "hashes.txt").string(), topology::HashFileText(known.file));
      if (status.ok() && !learning.unknown().empty()) {
        status = absl::FailedPreconditionError(
            absl::StrCat("what ", learning.unknown().front(), " hashes was not found (of ",
                         learning.unknown().size(),
                         " switches): neither Linux's with a seed that was tried nor "
                         "a known one of switch silicon; hashes.txt says unknown"));
      }
    }
  }
  WEFT_RETURN_IF_ERROR(job->Conclude(status));
  return EXIT_SUCCESS;
}

}  // namespace weft::topo
