#include "tools/doctor/pairs.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "collectives/communicator.h"

namespace weft::doctor {
namespace {

using collectives::Communicator;
using collectives::GroupRank;
using collectives::WorkPtr;

constexpr int kPings = 21;
constexpr size_t kPingBytes = 8;
constexpr double kSlowShare = 0.5;  // of the median of all directions, or of the way back

// Both directions with one other rank. Buffers outlive the works that a timeout leaves behind.
class Pair {
 public:
  Pair(std::unique_ptr<Communicator> group, const PairOptions& options, std::vector<char>& buffer)
      : group_(std::move(group)), options_(options), buffer_(buffer) {}

  absl::Status Send(Direction& direction) {
    const absl::Time deadline = clock_.Now() + options_.timeout;
    std::vector<double> trips;
    for (int i = 0; i < kPings; ++i) {
      const absl::Time start = clock_.Now();
      WEFT_RETURN_IF_ERROR(Push(kPingBytes, deadline));
      WEFT_RETURN_IF_ERROR(Pull(kPingBytes, deadline));
      trips.push_back(absl::ToDoubleMicroseconds(clock_.Now() - start));
    }
    direction.latency_us = UpperMedian(std::move(trips)) / 2;
    const absl::Time start = clock_.Now();
    for (int i = 0; i < options_.repeats; ++i) {
      WEFT_RETURN_IF_ERROR(Push(buffer_.size(), deadline));
    }
    WEFT_RETURN_IF_ERROR(Pull(kPingBytes, deadline));  // all has arrived
    const double seconds = absl::ToDoubleSeconds(clock_.Now() - start);
    direction.gbps = static_cast<double>(buffer_.size()) * options_.repeats * 8 / seconds / 1e9;
    return absl::OkStatus();
  }

  absl::Status Receive() {
    const absl::Time deadline = clock_.Now() + options_.timeout;
    for (int i = 0; i < kPings; ++i) {
      WEFT_RETURN_IF_ERROR(Pull(kPingBytes, deadline));
      WEFT_RETURN_IF_ERROR(Push(kPingBytes, deadline));
    }
    for (int i = 0; i < options_.repeats; ++i) {
      WEFT_RETURN_IF_ERROR(Pull(buffer_.size(), deadline));
    }
    return Push(kPingBytes, deadline);
  }

 private:
  GroupRank other() const { return GroupRank(1 - group_->rank().value()); }
  absl::Status Push(size_t bytes, absl::Time deadline) {
    return Finish(group_->Send(buffer_.data(), bytes, other(), 0), deadline);
  }
  absl::Status Pull(size_t bytes, absl::Time deadline) {
    return Finish(group_->Receive(buffer_.data(), bytes, other(), 0), deadline);
  }
  absl::Status Finish(const WorkPtr& work, absl::Time deadline) {
    return work->Wait(std::max(deadline - clock_.Now(), absl::Milliseconds(1)));
  }

  std::unique_ptr<Communicator> group_;
  const PairOptions& options_;
  std::vector<char>& buffer_;
  SystemClock clock_;
};

// "a, b, c and 9 more".
std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  if (names.size() <= kShown) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kShown, ", "), " and ",
                      names.size() - kShown, " more");
}

// Environment that differs between ranks by design.
bool IsPlace(const std::string& name) {
  static constexpr std::array kPlaces = {"WEFT_STORE", "WEFT_GENERATION", "WEFT_JOB_ID",
                                         "WEFT_HOST", "NCCL_HOSTID"};
  return absl::c_any_of(kPlaces, [&](const char* place) { return absl::StartsWith(name, place); });
}

// What should be equal, by a name for people.
std::map<std::string, std::string> Traits(const nlohmann::json& node) {
  std::map<std::string, std::string> traits;
  traits["kernel"] = node.value("kernel", "");
  std::vector<std::string> devices;
  for (const auto& device : node.value("devices", nlohmann::json::array())) {
    const std::string name = device.value("name", "");
    devices.push_back(absl::StrCat(name, " (", device.value("board", ""), ")"));
    traits[absl::StrCat("firmware of ", name)] = device.value("firmware", "");
    traits[absl::StrCat("adaptive retransmission of ", name)] =
        device.value("adaptive_retransmission", nlohmann::json()).dump();
    for (const auto& interface : device.value("interfaces", nlohmann::json::array())) {
      traits[absl::StrCat("RoCE MTU of ", name)] = absl::StrCat(
          interface.value("roce_mtu", 0), " (interface ", interface.value("mtu", 0), ")");
      traits[absl::StrCat("DCQCN of ", name)] = interface.value("ecn", nlohmann::json()).dump();
    }
    for (const auto& port : device.value("ports", nlohmann::json::array())) {
      const std::string where = absl::StrCat(name, " port ", port.value("number", 0));
      traits[absl::StrCat("speed of ", where)] = absl::StrCat(port.value("gbps", 0.0), " Gb/s");
      traits[absl::StrCat("kind of GID of ", where)] =
          port.contains("gid") && port["gid"].is_object() ? port["gid"].value("type", "") : "none";
      traits[absl::StrCat("traffic class of ", where)] =
          port.value("traffic_class", nlohmann::json()).dump();
    }
  }
  traits["RDMA devices"] = devices.empty() ? "none" : absl::StrJoin(devices, ", ");
  std::string plugin = "none";
  for (const auto& tried : node.value("plugins", nlohmann::json::array())) {
    if (!tried.value("tables", nlohmann::json()).empty()) {
      plugin = absl::StrCat(tried.value("name", ""), " ",
                            tried.value("tables", nlohmann::json()).dump());
      break;
    }
  }
  traits["NCCL's network plugin"] = plugin;
  using Environment = std::map<std::string, std::string>;
  for (const auto& [name, value] : node.value("environment", Environment())) {
    if (!IsPlace(name)) traits[name] = value;
  }
  return traits;
}

}  // namespace

int Opponent(int rank, int round, int ranks) {
  // The circle method: the last of an even number stays, the others turn.
  const int players = ranks + ranks % 2, circle = players - 1;
  int other;
  if (rank == players - 1) {
    other = round % circle;
  } else {
    other = ((2 * round - rank) % circle + circle) % circle;
    if (other == rank) other = players - 1;
  }
  return other < ranks ? other : -1;
}

absl::StatusOr<std::vector<Direction>> TestPairs(job::Joined& job, const PairOptions& options) {
  const int rank = job.environment.rank.value(), ranks = job.environment.world_size;
  std::vector<char> buffer(static_cast<size_t>(options.size.count()), 1);
  std::vector<std::unique_ptr<Pair>> pairs;  // until the end: works may be under way
  std::vector<Direction> directions;
  for (int round = 0; round < ranks - 1 + ranks % 2; ++round) {
    const int other = Opponent(rank, round, ranks);
    if (other < 0) continue;
    const Rank low(std::min(rank, other)), high(std::max(rank, other));
    WEFT_ASSIGN_OR_RETURN(
        auto group,
        Communicator::Create(job.endpoint, absl::StrCat("pair ", low.value(), " ", high.value()),
                             {low, high}));
    pairs.push_back(std::make_unique<Pair>(std::move(group), options, buffer));
    Direction direction;
    direction.from = rank;
    direction.to = other;
    absl::Status sent;
    if (rank == low.value()) {
      sent = pairs.back()->Send(direction);
      (void)pairs.back()->Receive();  // its sender reports what went wrong
    } else {
      (void)pairs.back()->Receive();
      sent = pairs.back()->Send(direction);
    }
    if (!sent.ok()) direction.error = sent.ToString();
    directions.push_back(std::move(direction));
  }
  return directions;
}

void CheckDirections(const std::vector<Direction>& directions,
                     const std::vector<std::string>& names, Findings& findings) {
  std::map<std::pair<int, int>, const Direction*> by_ends;
  std::vector<double> speeds;
  for (const Direction& direction : directions) {
    by_ends[{direction.from, direction.to}] = &direction;
    if (direction.error.empty()) speeds.push_back(direction.gbps);
  }
  const double median = UpperMedian(std::move(speeds));
  for (const Direction& direction : directions) {
    const std::string subject = absl::StrCat(names[static_cast<size_t>(direction.from)], " -> ",
                                             names[static_cast<size_t>(direction.to)]);
    auto back = by_ends.find({direction.to, direction.from});
    const Direction* other = back == by_ends.end() ? nullptr : back->second;
    if (!direction.error.empty()) {
      const bool one_way = other != nullptr && other->error.empty();
      findings.push_back(
          {Severity::kError, one_way ? "pair-one-way" : "pair-failed", subject,
           absl::StrCat(one_way ? "fails, while the way back works: " : "fails: ", direction.error),
           "look at the path between the two: addresses, routes, firewalls, cables"});
    } else if (other != nullptr && other->error.empty() &&
               direction.gbps < kSlowShare * other->gbps) {
      findings.push_back(
          {Severity::kWarning, "pair-uneven", subject,
           absl::StrFormat("carries %.1f Gb/s, the way back %.1f", direction.gbps, other->gbps),
           "one direction of a cable, a lane, or a congested path"});
    } else if (direction.gbps < kSlowShare * median) {
      findings.push_back(
          {Severity::kWarning, "pair-slow", subject,
           absl::StrFormat("carries %.1f Gb/s; the median of all is %.1f", direction.gbps, median),
           "paths that collide, a slow port, or a busy host"});
    }
  }
}

void CheckSameness(const std::vector<nlohmann::json>& nodes, Findings& findings) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>>
      hosts_of;  // by trait, value
  std::set<std::string> names;
  std::vector<std::map<std::string, std::string>> traits;
  for (const nlohmann::json& node : nodes) {
    traits.push_back(Traits(node));
    for (const auto& [name, value] : traits.back()) names.insert(name);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : names) {
      auto found = traits[i].find(name);
      const std::string value = found == traits[i].end() ? "not there" : found->second;
      hosts_of[name][value].push_back(nodes[i].value("host", "?"));
    }
  }
  for (const auto& [name, values] : hosts_of) {
    if (values.size() < 2) continue;
    std::vector<std::string> words;
    for (const auto& [value, hosts] : values) {
      words.push_back(absl::StrCat(value.empty() ? "\"\"" : value, " on ", SomeOf(hosts)));
    }
    findings.push_back({Severity::kWarning, "nodes-differ", name,
                        absl::StrCat("differs: ", absl::StrJoin(words, "; ")),
                        "make it equal on all hosts of a job"});
  }
}

absl::StatusOr<JobParts> JobParts::Parse(const std::vector<std::string>& parts) {
  JobParts job;
  std::set<std::string> hosts;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    nlohmann::json part = nlohmann::json::parse(parts[rank], nullptr, /*allow_exceptions=*/false);
    if (!part.is_object() || !part.contains("pairs")) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " sent no report; same version?"));
    }
    job.names.push_back(part.value("host", "?"));
    for (const nlohmann::json& one : part["pairs"]) {
      job.directions.push_back({one.value("from", 0), one.value("to", 0), one.value("error", ""),
                                one.value("latency_us", 0.0), one.value("gbps", 0.0)});
    }
    if (hosts.insert(job.names.back()).second) job.nodes.push_back(std::move(part));
  }
  absl::c_sort(job.directions, [](const Direction& a, const Direction& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  return job;
}

Findings JobParts::Judge() const {
  Findings findings;
  std::vector<std::vector<std::string>> hosts;  // of each of `findings`
  for (const nlohmann::json& node : nodes) {
    for (const nlohmann::json& one : node.value("findings", nlohmann::json::array())) {
      Finding finding{Severity::kNote, one.value("check", ""), one.value("subject", ""),
                      one.value("sentence", ""), one.value("advice", "")};
      const std::string severity = one.value("severity", "");
      if (severity == ToString(Severity::kNote)) continue;
      finding.severity =
          severity == ToString(Severity::kError) ? Severity::kError : Severity::kWarning;
      auto same = absl::c_find_if(findings, [&](const Finding& other) {
        return other.check == finding.check && other.subject == finding.subject &&
               other.sentence == finding.sentence;
      });
      hosts.resize(findings.size() + (same == findings.end() ? 1 : 0));
      hosts[static_cast<size_t>(same - findings.begin())].push_back(node.value("host", "?"));
      if (same == findings.end()) findings.push_back(std::move(finding));
    }
  }
  for (size_t i = 0; i < findings.size(); ++i) {
    findings[i].subject = absl::StrCat(SomeOf(hosts[i]), ": ", findings[i].subject);
  }
  CheckSameness(nodes, findings);
  CheckDirections(directions, names, findings);
  return findings;
}

}  // namespace weft::doctor
