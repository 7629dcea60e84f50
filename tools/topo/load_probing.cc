#include "tools/topo/load_probing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/status.h"
#include "tools/topo/option_checks.h"
#include "topology/ecmp/udp_load.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::LoadPaths;
using topology::LoadStep;
using topology::Risen;
using topology::SeenNic;

constexpr int kLoadsMost = 400;
constexpr absl::Duration kRampTime = absl::Milliseconds(100);
// Before it begins: all have heard that it does, as word of it may pass the path that it fills.
constexpr absl::Duration kHeadStart = absl::Milliseconds(80);
// More than it is filled and probed for, as hosts do not begin at one time.
constexpr absl::Duration kLoadTime = absl::Milliseconds(450);
constexpr absl::Duration kFillTime = absl::Milliseconds(100);  // before it is probed
constexpr int kRounds = 3;                                     // of probes under a load
constexpr absl::Duration kTripMost = absl::Milliseconds(80);   // then a probe counts as lost
constexpr absl::Duration kQuiet = absl::Milliseconds(60);      // without load: its queues are empty
constexpr absl::Duration kQuietMost = absl::Seconds(2);
const Bandwidth kRateLeast = Bandwidth::BytesPerSecond(1e6);
constexpr double kFull = 0.8;          // of the load arrives: its path is full
constexpr double kOverload = 2;        // of the bandwidth that is measured
constexpr double kFaster = 1.2;        // than any load before
constexpr int kNoFaster = 3;           // loads in a row: the host can send no faster
constexpr double kMisfitsMost = 0.34;  // of loads
constexpr double kVotesLeast = 0.8;    // of a name's flows, that are of one path
constexpr int kRoutersBetweenLeaves = 3;

absl::Duration MedianOf(std::vector<absl::Duration> all) {
  return all.empty() ? absl::InfiniteDuration() : UpperMedian(std::move(all));
}

double Microseconds(absl::Duration trip) {
  return trip == absl::InfiniteDuration() ? -1 : absl::ToDoubleMicroseconds(trip);
}
absl::Duration FromMicroseconds(double value) {
  return value < 0 ? absl::InfiniteDuration() : absl::Microseconds(value);
}

// To two digits: what arrives under load is a few percent wrong.
Bandwidth Rounded(Bandwidth bandwidth) {
  const double value = bandwidth.gigabits_per_second();
  if (value <= 0) return bandwidth;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1);
  return Bandwidth::GigabitsPerSecond(std::round(value / unit) * unit);
}

std::string PathName(int path) { return absl::StrCat("path ", path); }

}  // namespace

void LoadWords::Declare(CLI::App& app) {
  app.add_option(
         "--load", when,
         "What to do where switches do not answer probes, so that they do not show the paths of "
         "flows. auto: load paths with traffic, and tell them apart by their delays; never: "
         "fail; always: also measure the bandwidth of each path by loads")
      ->check(CLI::IsMember({"auto", "never", "always"}));
  app.add_option("--load-rate", rate, "Highest rate of one load, as 10Gbps; 0: the NIC's bandwidth")
      ->check([](const std::string& text) { return text == "0" ? "" : CheckBandwidth(text); });
  app.add_option("--load-traffic", traffic, "Bytes that all loads together may send, as 4GB")
      ->check(CheckBytes);
  app.add_option("--load-limit", limit, "How long all loads together may take, as 90s")
      ->check(CheckLimit);
}

absl::StatusOr<LoadProbing> LoadProbing::Make(JobHosts& job, const LoadWords& words, int ports) {
  LoadProbing out(job, ports);
  WEFT_ASSIGN_OR_RETURN(out.traffic_most_, ParseBytes(words.traffic));
  if (words.rate != "0") {
    WEFT_ASSIGN_OR_RETURN(out.rate_most_, ParseBandwidth(words.rate));
  }
  out.limit_ = DurationOf(words.limit);
  return out;
}

const std::string& LoadProbing::NameOf(SeenNic nic) const {
  return job_.hosts()[static_cast<size_t>(nic.host)].name;
}

double LoadProbing::Outcome::Delivered(const Load& load) const {
  return sent.count() == 0 ? 1 : got / (sent / load.duration);
}

absl::Status LoadProbing::ChooseHosts(const topology::SeenFabric& seen, int but) {
  const std::map<SeenNic, int> leaf_of = topology::LeavesOf(seen);
  std::map<int, std::vector<SeenNic>> by_leaf;  // one NIC of each host
  for (const auto& [nic, leaf] : leaf_of) {
    std::vector<SeenNic>& all = by_leaf[leaf];
    if (all.empty() || all.back().host != nic.host) all.push_back(nic);
  }
  for (const topology::SeenPair& pair : seen.pairs) {
    if (!pair.heard || leaf_of.at(pair.source) == leaf_of.at(pair.target)) continue;
    if (pair.routers == 3 || pair.routers == 0) continue;  // 0: switches that count no hops
    return absl::FailedPreconditionError(absl::StrCat(
        "load counts the paths of leaves and spines alone, 3 routers from leaf to leaf: between ",
        NameOf(pair.source), " and ", NameOf(pair.target), " are ", pair.routers));
  }
  leaves_.clear();
  int target = -1;
  for (const auto& [leaf, nics] : by_leaf) {
    if (leaf == but) continue;
    if (target < 0 || nics.size() > by_leaf[target].size()) target = leaf;
  }
  if (by_leaf.size() < 2 || by_leaf[target].size() < 2 ||
      (by_leaf.size() == 2 && by_leaf.begin()->second.size() < 2)) {
    return absl::FailedPreconditionError(
        "load needs two hosts under one leaf, and two hosts under others: one fills a path while "
        "another probes");
  }
  if (by_leaf.size() == 2 && by_leaf.rbegin()->second.size() < 2) {
    return absl::FailedPreconditionError("load between two leaves needs two hosts under each");
  }
  sink_ = by_leaf[target][0];
  probed_ = by_leaf[target][1];
  for (const auto& [leaf, nics] : by_leaf) {
    if (leaf != target) leaves_.push_back({nics, {}});
  }
  for (const Prober& leaf : leaves_) {
    const bool is_heard =
        std::any_of(seen.pairs.begin(), seen.pairs.end(), [&](const topology::SeenPair& pair) {
          return pair.heard && leaf_of.at(pair.source) == leaf_of.at(leaf.nics[0]) &&
                 leaf_of.at(pair.target) == target;
        });
    if (is_heard) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("load counts the paths of leaves that reach each other; ",
                     NameOf(leaf.nics[0]), " and ", NameOf(sink_), " did not"));
  }
  target_ = target;
  probe_ports_ = job_.DrawPorts(ports_, 5000, /*alike=*/true);
  if (rate_most_ <= Bandwidth()) {
    rate_most_ =
        job_.hosts()[static_cast<size_t>(sink_.host)].bandwidths[static_cast<size_t>(sink_.nic)];
  }
  return absl::OkStatus();
}

std::vector<absl::Duration> LoadProbing::Trips(SeenNic own, int rounds, absl::Duration timeout) {
  topology::EchoProberOptions options;
  const topology::TraceOptions trace = job_.Options(own, probed_);
  options.source = trace.source;
  options.target = trace.target;
  options.target_port = trace.target_port;
  options.records_route = false;
  options.timeout = timeout;
  options.rounds = 1;
  std::vector<std::vector<absl::Duration>> trips(probe_ports_.size());
  topology::EchoProber prober(options);
  for (int round = 0; round < rounds; ++round) {
    absl::StatusOr<std::vector<topology::EchoAnswer>> answers = prober.Ask(probe_ports_);
    if (!answers.ok()) break;
    for (size_t i = 0; i < answers->size(); ++i) {
      trips[i].push_back((*answers)[i].heard ? (*answers)[i].rtt : absl::InfiniteDuration());
    }
  }
  job_.statistics().sent += prober.sent();
  job_.statistics().lost += prober.lost();
  std::vector<absl::Duration> out;
  out.reserve(trips.size());
  for (std::vector<absl::Duration>& of_port : trips) out.push_back(MedianOf(std::move(of_port)));
  return out;
}

absl::Status LoadProbing::MeasureIdle() {
  json own;
  for (const Prober& leaf : leaves_) {
    if (ProberOf(leaf).host != job_.own()) continue;
    own = Microseconds(MedianOf(Trips(ProberOf(leaf), kRounds, 3 * kTripMost)));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<json> all, job_.Exchange(Key("idle round trips"), own));
  for (Prober& leaf : leaves_) {
    const json& told = all[static_cast<size_t>(ProberOf(leaf).host)];
    leaf.idle = told.is_number() ? FromMicroseconds(told) : absl::InfiniteDuration();
    if (leaf.idle < absl::InfiniteDuration()) continue;
    return absl::FailedPreconditionError(absl::StrCat("most probes from ", NameOf(ProberOf(leaf)),
                                                      " to ", NameOf(probed_),
                                                      " have no answer, without any load"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadProbing::Outcome> LoadProbing::Step(const Load& load) {
  const bool is_sink = sink_.host == job_.own();
  if (is_sink) job_.server(sink_.nic).ForgetLoad();
  WEFT_RETURN_IF_ERROR(job_.Exchange(load.name, json()).status());
  json own = json::object();
  if (load.source.host == job_.own()) {
    const topology::TraceOptions trace = job_.Options(load.source, sink_);
    absl::SleepFor(kHeadStart);
    absl::StatusOr<Bytes> sent = topology::SendUdpLoad(
        {trace.source, trace.target, load.port, trace.target_port, load.rate, load.duration});
    own["sent"] = sent.ok() ? sent->count() : 0;  // a port that is in use
  } else if (load.probed) {
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      if (ProberOf(leaves_[leaf]).host != job_.own()) continue;
      absl::SleepFor(kHeadStart + kFillTime);
      own["leaf"] = leaf;
      own["trips"] = json::array();
      for (absl::Duration trip : Trips(ProberOf(leaves_[leaf]), kRounds, kTripMost)) {
        own["trips"].push_back(Microseconds(trip));
      }
    }
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<json> told, job_.Exchange(load.name + ": sent", own));
  json arrived;
  if (is_sink) {
    topology::EchoServer& server = job_.server(sink_.nic);
    topology::ReceivedLoad got = server.load();
    const absl::Time latest = SystemClock().Now() + kQuietMost;
    for (Bytes before(-1); got.bytes != before && SystemClock().Now() < latest;) {
      before = got.bytes;
      absl::SleepFor(kQuiet);
      got = server.load();
    }
    arrived = {got.bytes.count(), absl::ToDoubleSeconds(got.time)};
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<json> got, job_.Exchange(load.name + ": got", arrived));
  Outcome out;
  out.trips.resize(leaves_.size());
  for (const json& one : told) {
    out.sent += Bytes(one.value("sent", int64_t{0}));
    if (!one.contains("trips") || one["leaf"].get<size_t>() >= leaves_.size()) continue;
    for (const json& trip : one["trips"]) {
      out.trips[one["leaf"].get<size_t>()].push_back(FromMicroseconds(trip));
    }
  }
  const json& sink = got[static_cast<size_t>(sink_.host)];
  if (sink.is_array() && sink[1].get<double>() > 0) {
    out.got = Bandwidth::BytesPerSecond(sink[0].get<double>() / sink[1].get<double>());
  }
  sent_ += out.sent;
  ++loads_;
  return out;
}

absl::Status LoadProbing::FindRate() {
  Load load;
  load.source = leaves_[0].nics[0];
  load.port = job_.DrawPorts(1, 6000, /*alike=*/true)[0];
  load.duration = kRampTime;
  Bandwidth most;
  int no_faster = 0;
  for (load.rate = std::min(kRateLeast, rate_most_);; load.rate = load.rate * 2) {
    load.name = Key(absl::StrCat("load to find the rate ", loads_));
    WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Step(load));
    if (outcome.Delivered(load) < kFull && outcome.got > Bandwidth()) {
      rate_ = std::min(outcome.got * kOverload, std::max(rate_most_, load.rate));
      return absl::OkStatus();
    }
    const Bandwidth sent_now = outcome.sent / load.duration;
    no_faster = sent_now > most * kFaster ? 0 : no_faster + 1;
    most = std::max(most, sent_now);
    if (no_faster < kNoFaster && load.rate * 2 <= rate_most_) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "a load of %.3g Gbit/s from %s to %s all arrived, and %s: no path is filled, so that paths "
        "cannot be counted by load; write the fabric file by hand or from LLDP of the switches "
        "(docs/fabric-format.md)",
        most.gigabits_per_second(), NameOf(load.source), NameOf(sink_),
        no_faster < kNoFaster ? "the NIC, or --load-rate, allows no more"
                              : "the host sends no faster"));
  }
}

LoadStep LoadProbing::Understand(const Outcome& outcome) const {
  LoadStep step;
  step.got = outcome.got;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    std::vector<Risen> risen(probe_ports_.size(), Risen::kUnknown);
    if (outcome.trips[leaf].size() == probe_ports_.size()) {
      risen = topology::FindRisen(leaves_[leaf].idle, outcome.got, outcome.trips[leaf]);
    }
    step.risen.insert(step.risen.end(), risen.begin(), risen.end());
  }
  return step;
}

absl::StatusOr<std::vector<LoadStep>> LoadProbing::LoadUntilWhole() {
  const size_t flows = leaves_.size() * probe_ports_.size();
  const std::vector<uint16_t> ports = job_.DrawPorts(kLoadsMost, 7000, /*alike=*/true);
  std::vector<LoadStep> steps;
  for (size_t i = 0; i < ports.size(); ++i) {
    const Prober& leaf = leaves_[i % leaves_.size()];
    Load load{Key(absl::StrCat("load ", i)), leaf.nics[0], ports[i], rate_, kLoadTime, true};
    WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Step(load));
    if (outcome.Delivered(load) > kFull) {
      rate_ = std::min(rate_ * kOverload, rate_most_);  // a wider path
    } else {
      steps.push_back(Understand(outcome));
      if (topology::FindLoadPaths(flows, steps).IsWhole()) return steps;
    }
    // Every rank stops at the same step, though clocks differ.
    const bool may_go_on = SystemClock().Now() < begin_ + limit_ && sent_ < traffic_most_;
    WEFT_ASSIGN_OR_RETURN(const std::string goes_on,
                          job_.FromRankZero(Key(absl::StrCat("after load ", i)),
                                            std::string(may_go_on ? "on" : "stop")));
    if (goes_on == "on") continue;
    break;
  }
  const LoadPaths paths = topology::FindLoadPaths(flows, steps);
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d loads of %.3g Gbit/s, %.3g MB in all, have not told the path of %d of %d flows (%d paths "
      "so far): --load-limit and --load-traffic allow more, --ports asks for fewer",
      loads_, rate_.gigabits_per_second(), static_cast<double>(sent_.count()) / 1e6,
      std::count(paths.path_of.begin(), paths.path_of.end(), -1), flows, paths.bandwidth.size()));
}

absl::StatusOr<LoadPaths> LoadProbing::FindPaths() {
  ++towards_;
  WEFT_RETURN_IF_ERROR(MeasureIdle());
  if (job_.rank() == 0) {
    absl::PrintF("paths by load towards the leaf of %s: at most %.3g MB, %s and %d loads\n",
                 NameOf(sink_), static_cast<double>(traffic_most_.count()) / 1e6,
                 absl::FormatDuration(limit_), kLoadsMost);
    std::fflush(stdout);
  }
  WEFT_RETURN_IF_ERROR(FindRate());
  WEFT_ASSIGN_OR_RETURN(const std::vector<LoadStep> steps, LoadUntilWhole());
  LoadPaths paths = topology::FindLoadPaths(leaves_.size() * probe_ports_.size(), steps);
  if (paths.misfits <= kMisfitsMost * static_cast<double>(steps.size())) return paths;
  return absl::FailedPreconditionError(
      absl::StrFormat("round trips under load contradict each other: %d of %d loads do not fit "
                      "%d paths; is there other traffic, or are the hosts busy?",
                      paths.misfits, steps.size(), paths.bandwidth.size()));
}

absl::StatusOr<LoadProbing::PathNames> LoadProbing::NamesOf(const LoadPaths& paths) {
  json own = json::array();  // [leaf, port's number, names]
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    if (ProberOf(leaves_[leaf]).host != job_.own()) continue;
    topology::TraceOptions options = job_.Options(ProberOf(leaves_[leaf]), probed_);
    options.gives_up = true;
    const absl::StatusOr<std::vector<topology::TracedFlow>> flows =
        topology::TraceFlows(options, kRoutersBetweenLeaves, probe_ports_, job_.statistics());
    if (!flows.ok()) continue;
    for (const topology::TracedFlow& flow : *flows) {
      const auto port = std::find(probe_ports_.begin(), probe_ports_.end(), flow.source_port);
      for (const std::vector<std::string>* names : {&flow.recorded, &flow.answered}) {
        if (names->size() < 2 || (*names)[1].empty()) continue;
        own.push_back({leaf, port - probe_ports_.begin(), (*names)[1]});
      }
    }
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<json> all, job_.Exchange(Key("names"), own));
  std::map<std::string, std::map<int, int>> votes;
  for (const json& of_host : all) {
    for (const json& row : of_host) {
      const size_t flow = row[0].get<size_t>() * probe_ports_.size() + row[1].get<size_t>();
      if (flow < paths.path_of.size()) ++votes[row[2].get<std::string>()][paths.path_of[flow]];
    }
  }
  // The path of some flows is told wrongly on a busy host.
  PathNames out;
  for (const auto& [name, of_paths] : votes) {
    int all_votes = 0;
    std::pair<int, int> best;  // votes, path
    for (const auto& [path, count] : of_paths) {
      all_votes += count;
      best = std::max(best, {count, path});
    }
    if (best.first >= kVotesLeast * all_votes) out[name] = best.second;
  }
  return out;
}

// The names that the hosts of the first leaf see, which was loaded towards, are found by loads
// towards another one: both have names of a third in common.
absl::Status LoadProbing::AddNamesOfTarget(const topology::SeenFabric& seen, PathNames& names) {
  std::set<int> named;
  for (const auto& [_, path] : names) named.insert(path);
  WEFT_RETURN_IF_ERROR(ChooseHosts(seen, target_));
  WEFT_ASSIGN_OR_RETURN(const LoadPaths paths, FindPaths());
  WEFT_ASSIGN_OR_RETURN(const PathNames others, NamesOf(paths));
  std::map<int, int> first_of;  // path of before, by the path of now
  bool agree = true;
  for (const auto& [name, path] : others) {
    const auto before = names.find(name);
    if (before == names.end()) continue;
    agree = first_of.try_emplace(path, before->second).first->second == before->second && agree;
  }
  std::set<int> met;
  for (const auto& [_, before] : first_of) met.insert(before);
  if (!agree || met != named || first_of.size() != paths.bandwidth.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("loads towards the leaf of ", NameOf(sink_), " tell ", paths.bandwidth.size(),
                     " paths, of which ", first_of.size(), " have names that are known from the ",
                     named.size(), " before"));
  }
  for (const auto& [name, path] : others) names.try_emplace(name, first_of.at(path));
  return absl::OkStatus();
}

void LoadProbing::TakePaths(const LoadPaths& paths, topology::SeenFabric& seen) const {
  const std::map<SeenNic, int> leaf_of = topology::LeavesOf(seen);
  for (topology::SeenPair& pair : seen.pairs) {
    if (leaf_of.at(pair.source) != leaf_of.at(pair.target) && pair.heard) {
      pair.routers = kRoutersBetweenLeaves;
    }
  }
  seen.flows.clear();
  seen.asked.clear();
  for (size_t i = 0; i < paths.path_of.size(); ++i) {
    seen.flows.push_back({ProberOf(leaves_[i / probe_ports_.size()]),
                          probed_,
                          probe_ports_[i % probe_ports_.size()],
                          job_.port(),
                          {},
                          {"", PathName(paths.path_of[i]), ""}});
  }
}

absl::Status LoadProbing::FindByLoad(topology::SeenFabric& seen, bool counts) {
  begin_ = SystemClock().Now();
  WEFT_RETURN_IF_ERROR(ChooseHosts(seen, -1));
  WEFT_ASSIGN_OR_RETURN(const LoadPaths paths, FindPaths());
  WEFT_ASSIGN_OR_RETURN(PathNames names, NamesOf(paths));
  const std::string towards = NameOf(sink_);
  const double rate = rate_.gigabits_per_second() * 1e3;
  if (counts) TakePaths(paths, seen);
  for (size_t path = 0; path < paths.bandwidth.size(); ++path) {
    seen.loaded[PathName(static_cast<int>(path))] = Rounded(paths.bandwidth[path]);
  }
  std::set<int> named;
  for (const auto& [_, path] : names) named.insert(path);
  std::string note;
  if (counts && named.size() == paths.bandwidth.size() && leaves_.size() >= 2) {
    const absl::Status more = AddNamesOfTarget(seen, names);
    if (!more.ok()) {
      note = absl::StrCat("; names that ", towards, " sees are not known: ", more.message());
    }
  } else if (counts) {
    note = absl::StrCat("; which names ", towards, " sees for them is not known");
  }
  for (const auto& [name, path] : names) seen.same.emplace_back(PathName(path), name);
  seen.load_note = absl::StrFormat(
      "%s %d loads of up to %.3g Mbit/s filled, %.3g MB in all, told apart by the round trips that "
      "rose; %d loads do not fit. The spines of %s's leaf are taken to be those of all others%s",
      counts ? "switches told too little: paths are those that"
             : "bandwidths are those of paths that",
      loads_, rate, static_cast<double>(sent_.count()) / 1e6, paths.misfits, towards, note);
  return absl::OkStatus();
}

}  // namespace weft::topo
