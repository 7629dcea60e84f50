#include "tools/topo/job_hosts.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/host_name.h"
#include "base/json_text.h"
#include "base/random.h"
#include "base/settings.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/planned_ways.h"
#include "tools/topo/option_checks.h"

namespace weft::topo {
namespace {

using nlohmann::json;

constexpr absl::Duration kMeeting = absl::Minutes(2);
constexpr absl::Duration kWaitUntilToldOf = absl::Seconds(5);  // then whom it is for is printed
constexpr absl::Duration kWaitToldEvery = absl::Seconds(30);
constexpr absl::Duration kDeadRankMost = absl::Seconds(2);  // that the others are waited for
constexpr absl::Duration kRankZeroMost = absl::Minutes(5);  // that rank 0 computes before it tells
constexpr double kUnknownGigabits = 10;                     // of an interface that does not say

absl::StatusOr<std::vector<net::Interface>> Chosen(const std::string& words) {
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/false));
  std::vector<net::Interface> out;
  if (words.empty()) {
    WEFT_ASSIGN_OR_RETURN(net::Interface one, net::ChooseInterface(settings));
    out.push_back(one);
    return out;
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<net::Interface> all, net::ListInterfaces());
  for (absl::string_view name : absl::StrSplit(words, ',', absl::SkipEmpty())) {
    absl::StatusOr<net::Interface> one = net::ChooseInterface(
        all, absl::StrCat("=", name), settings.Text("tcp.family"), "--interfaces");
    if (!one.ok()) return one.status();
    out.push_back(*one);
  }
  return out;
}

double GigabitsOf(const std::string& interface) {
  int megabits = 0;
  const std::string text = FirstLine(absl::StrCat("/sys/class/net/", interface, "/speed"));
  return absl::SimpleAtoi(text, &megabits) && megabits > 0 ? megabits / 1000.0 : kUnknownGigabits;
}

// Says on standard error what is being waited for, when that takes long, until it is destroyed.
class WaitTeller {
 public:
  explicit WaitTeller(std::function<std::string()> what)
      : what_(std::move(what)), thread_([this] { Run(); }) {}
  ~WaitTeller() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  WaitTeller(const WaitTeller&) = delete;
  WaitTeller& operator=(const WaitTeller&) = delete;

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    absl::Duration waited;
    for (absl::Duration next = kWaitUntilToldOf;; next = kWaitToldEvery) {
      if (changed_.wait_for(lock, absl::ToChronoMilliseconds(next), [this] { return ends_; })) {
        return;
      }
      waited += next;
      absl::FPrintF(stderr, "weft-topo: waiting since %s, up to %s: %s\n",
                    absl::FormatDuration(waited), absl::FormatDuration(kMeeting), what_());
    }
  }

  const std::function<std::string()> what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;  // the last, as it uses all others
};

// This host's name with '-' for what no name in a fabric may have.
std::string NameInFabric() {
  std::string out = HostName();
  std::replace_if(
      out.begin(), out.end(),
      [](char c) {
        return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' &&
               c != '_';
      },
      '-');
  return out;
}

}  // namespace

void ProbeWords::Declare(CLI::App& app) {
  app.add_option("--interfaces", interfaces,
                 "Interfaces of each host, eth0,eth1: NIC 0, NIC 1, ...; empty: one, as "
                 "tcp.interface chooses it");
  app.add_option("--port", port, "UDP port that probes go to, which switches may hash")
      ->check(CLI::Range(1, 65535));
  app.add_option("--ports", ports, "Source ports that a host probes towards each leaf")
      ->check(CLI::Range(4, 4096));
  app.add_option("--timeout", timeout, "How long one answer is waited for: 50ms, 1s")
      ->check(CheckLimit);
  app.add_option("--rounds", rounds, "How often a question without an answer is asked, at most")
      ->check(CLI::Range(1, 100));
}

absl::StatusOr<std::unique_ptr<JobHosts>> JobHosts::Meet(const ProbeWords& words,
                                                         const std::string& program) {
  auto out = std::make_unique<JobHosts>();
  out->program_ = program;
  out->port_ = static_cast<uint16_t>(words.port);
  out->rounds_ = words.rounds;
  out->timeout_ = DurationOf(words.timeout);
  WEFT_ASSIGN_OR_RETURN(out->environment_, collectives::JobEnvironment::FromEnvironment());
  if (out->ranks() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        program, " needs the hosts of a job: on each, weft-run --nnodes N --node-rank K ... -- ",
        program, " ..., or srun, mpirun or torchrun (docs/launch.md)"));
  }
  {
    const collectives::JobEnvironment& job = out->environment_;
    WaitTeller teller([&] {
      return absl::StrCat("the job's store at ",
                          job.store.empty() ? absl::StrCat(job.master_addr, ":", job.master_port,
                                                           ", which rank 0 serves,")
                                            : job.store,
                          " does not answer");
    });
    WEFT_ASSIGN_OR_RETURN(out->store_, collectives::StoreFromEnvironment(job, kMeeting));
  }
  absl::Status told = out->TellAddresses(words);
  if (!told.ok()) return out->Conclude(told);
  return out;
}

absl::Status JobHosts::TellAddresses(const ProbeWords& words) {
  json own = json::object();
  absl::Status problem;
  if (environment_.local_rank == 0) {
    absl::StatusOr<std::vector<net::Interface>> chosen = Chosen(words.interfaces);
    if (!chosen.ok()) problem = chosen.status();
    own["name"] = NameInFabric();
    own["addresses"] = own["gbps"] = json::array();
    for (const net::Interface& one : chosen.ok() ? *chosen : std::vector<net::Interface>()) {
      const topology::IpAddress address = net::ToIpAddress(one.address);
      own["addresses"].push_back(address.ToString());
      interfaces_.push_back(one.name);
      own["gbps"].push_back(GigabitsOf(one.name));
      absl::StatusOr<std::unique_ptr<topology::EchoServer>> server =
          topology::EchoServer::Open(address, port_);
      if (server.ok()) {
        servers_.push_back(*std::move(server));
      } else {
        problem = Annotate(server.status(), "answering probes (--port chooses another port)");
      }
    }
    if (!problem.ok()) own["error"] = std::string(problem.message());
  }
  WEFT_RETURN_IF_ERROR(store().Set(Key(absl::StrCat("here/", rank())), ""));
  std::vector<std::string> all;
  {
    std::optional<WaitTeller> teller;
    if (rank() == 0) teller.emplace([this] { return Missing(); });
    WEFT_ASSIGN_OR_RETURN(
        all, store().AllGather(Key("hosts"), rank(), ranks(), JsonText(own), kMeeting));
  }
  std::set<std::string> names;
  bool unique = true;
  for (int rank = 0; rank < ranks(); ++rank) {
    const json one = json::parse(all[static_cast<size_t>(rank)], nullptr, false);
    if (!one.is_object() || one.empty()) continue;
    topology::SeenHost host;
    host.name = one.value("name", "");
    if (one.contains("error")) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " on ", host.name, ": ", one["error"].get<std::string>()));
    }
    unique = names.insert(host.name).second && unique;
    for (const auto& text : one["addresses"]) {
      WEFT_ASSIGN_OR_RETURN(topology::IpAddress address,
                            topology::IpAddress::Parse(text.get<std::string>()));
      host.addresses.push_back(address);
    }
    for (const auto& gigabits : one["gbps"]) {
      host.bandwidths.push_back(Bandwidth::GigabitsPerSecond(gigabits.get<double>()));
    }
    if (rank == this->rank()) own_ = static_cast<int>(hosts_.size());
    rank_of_host_.push_back(rank);
    hosts_.push_back(std::move(host));
  }
  // Containers and namespaces may share a name: then hosts are named by their numbers.
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!unique) hosts_[i].name = absl::StrCat("h", i);
  }
  if (hosts_.size() < 2) {
    return absl::FailedPreconditionError(
        "all ranks are on one host (only one has LOCAL_RANK 0): a fabric is found between hosts");
  }
  return absl::OkStatus();
}

std::string JobHosts::Missing() {
  constexpr size_t kNamed = 16;
  std::vector<std::string> missing;
  for (int rank = 0; rank < ranks(); ++rank) {
    absl::StatusOr<bool> there = store().Check({Key(absl::StrCat("here/", rank))});
    if (there.ok() && !*there) missing.push_back(absl::StrCat(rank));
  }
  const size_t count = missing.size();
  if (count > kNamed) missing.resize(kNamed);
  return absl::StrCat(count, " of ", ranks(),
                      " ranks have not come: ", absl::StrJoin(missing, ", "),
                      count > kNamed ? " ..." : "");
}

std::string JobHosts::NameOf(int rank) const {
  for (size_t host = 0; host < rank_of_host_.size(); ++host) {
    if (rank_of_host_[host] == rank) return absl::StrCat("rank ", rank, " on ", hosts_[host].name);
  }
  return absl::StrCat("rank ", rank);
}

absl::StatusOr<std::vector<json>> JobHosts::Exchange(const std::string& what, const json& own,
                                                     const absl::Status& problem) {
  json said = json::object();
  if (!problem.ok()) {
    said["error"] = std::string(problem.message());
  } else if (own_ >= 0) {
    said["value"] = own;
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all,
                        store().AllGather(Key(what), rank(), ranks(), JsonText(said), kMeeting));
  std::vector<json> out;
  for (int rank = 0; rank < ranks(); ++rank) {
    json one = json::parse(all[static_cast<size_t>(rank)], nullptr, false);
    if (!one.is_object()) {
      return absl::DataLossError(
          absl::StrCat("what ", NameOf(rank), " says of ", what, " is no JSON"));
    }
    if (one.contains("error")) {
      return absl::FailedPreconditionError(
          absl::StrCat(NameOf(rank), ": ", one["error"].get<std::string>()));
    }
    if (one.contains("value")) out.push_back(std::move(one["value"]));
  }
  if (out.size() == hosts_.size()) return out;
  return absl::DataLossError(
      absl::StrCat(out.size(), " of ", hosts_.size(), " hosts have said ", what));
}

absl::StatusOr<std::string> JobHosts::FromRankZero(const std::string& what,
                                                   const absl::StatusOr<std::string>& own) {
  // The first character tells a word from an error.
  if (rank() == 0) {
    WEFT_RETURN_IF_ERROR(
        store().Set(Key(what), own.ok() ? "+" + *own : "-" + std::string(own.status().message())));
    return own;
  }
  WEFT_ASSIGN_OR_RETURN(const std::string said, store().Get(Key(what), kRankZeroMost));
  if (absl::StartsWith(said, "+")) return said.substr(1);
  return absl::FailedPreconditionError(absl::StrCat(NameOf(0), ": ", said.substr(1)));
}

absl::Status JobHosts::TryOnRankZero(const std::string& what,
                                     const std::function<absl::Status()>& attempt) {
  const absl::Status own = rank() == 0 ? attempt() : absl::OkStatus();
  const absl::StatusOr<std::string> said = own.ok() ? absl::StatusOr<std::string>("") : own;
  return FromRankZero(what, said).status();
}

absl::Status JobHosts::Conclude(const absl::Status& own) {
  absl::StatusOr<std::vector<std::string>> all = store().AllGather(
      Key("end"), rank(), ranks(), own.ok() ? "" : absl::StrCat("-", own.message()),
      // Where a rank was missed, it will not come to the end either.
      absl::IsDeadlineExceeded(own) ? kDeadRankMost : kMeeting);
  servers_.clear();
  if (!own.ok()) return own;
  if (!all.ok()) return Annotate(all.status(), "waiting for all ranks to end");
  for (int rank = 0; rank < ranks(); ++rank) {
    const std::string& said = (*all)[static_cast<size_t>(rank)];
    if (said.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(NameOf(rank), ": ", said.substr(1)));
  }
  return absl::OkStatus();
}

topology::TraceOptions JobHosts::Options(topology::SeenNic source, topology::SeenNic target) const {
  topology::TraceOptions out;
  const auto address = [&](topology::SeenNic nic) {
    return hosts_[static_cast<size_t>(nic.host)].addresses[static_cast<size_t>(nic.nic)];
  };
  out.source = address(source);
  out.target = address(target);
  out.target_port = port_;
  out.timeout = timeout_;
  out.rounds = rounds_;
  return out;
}

std::vector<uint16_t> JobHosts::DrawPorts(int count, uint64_t salt, bool alike,
                                          const std::set<uint16_t>& but) const {
  Random random(alike ? 0 : static_cast<uint64_t>(rank()) + 1, salt);
  std::set<uint16_t> ports;
  // RoCE's, above those that kernels hand out.
  while (static_cast<int>(ports.size()) < count) {
    const auto port = static_cast<uint16_t>(0xF000 - random.Below(0x3000));
    if (port != port_ && but.count(port) == 0) ports.insert(port);
  }
  std::vector<uint16_t> out(ports.begin(), ports.end());
  random.Shuffle(out);
  return out;
}

}  // namespace weft::topo
