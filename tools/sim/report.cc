#include "tools/sim/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::sim {
namespace {

using Json = nlohmann::ordered_json;
using topology::Endpoint;
using topology::LinkResult;
using topology::Operation;
using topology::OperationKind;
using topology::OperationResult;

double Microseconds(absl::Duration time) { return absl::ToDoubleMicroseconds(time); }
bool IsEnded(const OperationResult& one) { return one.ended < absl::InfiniteDuration(); }

// Nearest rank.
Json Percentiles(std::vector<double> values) {
  if (values.empty()) return Json::object();
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (double value : values) sum += value;
  auto at = [&](double share) {
    auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  return {{"mean", sum / static_cast<double>(values.size())},
          {"min", values.front()},
          {"p50", at(0.5)},
          {"p90", at(0.9)},
          {"p99", at(0.99)},
          {"p999", at(0.999)},
          {"max", values.back()}};
}

bool IsTransfer(const Operation& operation) {
  return operation.kind == OperationKind::kRing || (operation.kind == OperationKind::kTransfer &&
                                                    operation.source.host != operation.target.host);
}

// A collective or job. Its bus bandwidth is what each NIC that sends has sent, over the time: that
// of nccl-tests for collectives in which all send alike.
struct Group {
  absl::Duration start = absl::InfiniteDuration(), end = -absl::InfiniteDuration();
  double bytes = 0;
  int64_t operations = 0, unfinished = 0;
  absl::flat_hash_set<Endpoint> sources;
};

void AddSources(const Run& run, const Operation& operation, Group& group) {
  auto add = [&](Endpoint from) {
    for (int lane = 0; lane < operation.width; ++lane)
      group.sources.insert({from.host, from.nic + lane});
  };
  if (operation.kind == OperationKind::kTransfer) {
    add(operation.source);
    group.bytes += static_cast<double>(operation.bytes.count()) * operation.width;
    return;
  }
  for (Endpoint member : run.workload->ring(operation.ring)) add(member);
  group.bytes += static_cast<double>(operation.bytes.count()) * operation.width * operation.steps *
                 static_cast<double>(run.workload->ring(operation.ring).size());
}

Json GroupsOf(const Run& run) {
  std::vector<Group> groups(run.workload->groups());
  for (topology::OperationId id = 0; id < run.workload->size(); ++id) {
    const Operation& operation = run.workload->operation(id);
    if (operation.group == 0 || !IsTransfer(operation)) continue;
    Group& group = groups[operation.group];
    const OperationResult& result = run.result.operations[id];
    ++group.operations;
    AddSources(run, operation, group);
    group.start = std::min(group.start, result.started);
    if (!IsEnded(result)) {
      ++group.unfinished;
      continue;
    }
    group.end = std::max(group.end, result.ended);
  }
  Json list = Json::array();
  for (uint32_t i = 1; i < groups.size(); ++i) {
    const Group& group = groups[i];
    if (group.operations == 0) continue;
    Json one = {{"name", run.workload->group(i)},
                {"transfers", group.operations},
                {"unfinished", group.unfinished},
                {"bytes", group.bytes}};
    if (group.unfinished == 0) {
      double seconds = absl::ToDoubleSeconds(group.end - group.start);
      one["start_us"] = Microseconds(group.start);
      one["time_us"] = Microseconds(group.end - group.start);
      double each = group.bytes / static_cast<double>(group.sources.size());
      one["busbw_GBps"] = seconds > 0 ? each / seconds / 1e9 : 0;
    }
    list.push_back(one);
  }
  return list;
}

Json LinksOf(const Run& run) {
  std::vector<double> loads = LinkLoads(run);
  double load_max = 0, load_sum = 0, paused = 0;
  int64_t queue_max = 0, marked = 0, dropped = 0, used = 0;
  double queue_mean = 0;
  std::vector<int> order;
  for (size_t i = 0; i < loads.size(); ++i) {
    const LinkResult& link = run.result.links[i];
    order.push_back(static_cast<int>(i));
    load_max = std::max(load_max, loads[i]);
    load_sum += loads[i];
    used += link.bytes > Bytes(0) ? 1 : 0;
    queue_max = std::max(queue_max, link.queue_max.count());
    queue_mean = std::max(queue_mean, link.queue_mean);
    marked += link.marked;
    dropped += link.dropped;
    paused += Microseconds(link.paused);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return loads[static_cast<size_t>(a)] > loads[static_cast<size_t>(b)];
  });
  Json hottest = Json::array();
  constexpr size_t kShown = 10;
  for (size_t k = 0; k < std::min(kShown, order.size()); ++k) {
    auto i = static_cast<size_t>(order[k]);
    const LinkResult& link = run.result.links[i];
    hottest.push_back({{"link", run.fabric->Name(LinkId(order[k]))},
                       {"load", loads[i]},
                       {"bytes", link.bytes.count()},
                       {"queue_max", link.queue_max.count()},
                       {"queue_mean", link.queue_mean},
                       {"marked", link.marked},
                       {"dropped", link.dropped},
                       {"paused_us", Microseconds(link.paused)}});
  }
  return {{"used", used},
          {"load_mean", used > 0 ? load_sum / static_cast<double>(used) : 0},
          {"load_max", load_max},
          {"queue_max_bytes", queue_max},
          {"queue_mean_bytes_max", queue_mean},
          {"marked", marked},
          {"dropped", dropped},
          {"paused_us", paused},
          {"hottest", hottest}};
}

double MaxRssMb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string Row(const char* name, const Json& values) {
  std::string row = absl::StrFormat("%-14s", name);
  for (const char* key : {"mean", "min", "p50", "p90", "p99", "p999", "max"}) {
    absl::StrAppendFormat(&row, " %10.2f", values[key].get<double>());
  }
  return row + "\n";
}

}  // namespace

std::vector<double> LinkLoads(const Run& run) {
  double seconds = absl::ToDoubleSeconds(run.result.end);
  std::vector<double> loads;
  for (size_t i = 0; i < run.result.links.size(); ++i) {
    double could = run.fabric->link(LinkId(static_cast<int>(i))).bandwidth.bytes_per_second();
    auto carried = static_cast<double>(run.result.links[i].bytes.count());
    loads.push_back(seconds > 0 ? carried / (could * seconds) : 0);
  }
  return loads;
}

Json ToJson(const Run& run) {
  std::vector<double> completion, delivery;
  int64_t flows = 0;
  for (topology::OperationId id = 0; id < run.workload->size(); ++id) {
    const OperationResult& one = run.result.operations[id];
    if (!IsTransfer(run.workload->operation(id))) continue;
    ++flows;
    if (!IsEnded(one)) continue;
    bool is_known = one.acknowledged < absl::InfiniteDuration();
    delivery.push_back(Microseconds(one.ended - one.started));
    completion.push_back(Microseconds((is_known ? one.acknowledged : one.ended) - one.started));
  }
  const Options& options = *run.options;
  Json json = {{"program", "weft-sim"},
               {"seed", options.packet.seed},
               {"level", options.level == Level::kFlow ? "flow" : "packet"},
               {"fabric",
                {{"name", options.fabric},
                 {"hosts", run.fabric->hosts().size()},
                 {"switches", run.fabric->switches().size()},
                 {"links", run.fabric->links()}}},
               {"workload", options.traffic.empty() ? options.workload : options.traffic},
               {"transport", options.transport},
               {"operations", run.workload->size()},
               {"transfers", run.workload->transfers()},
               {"flows", flows},
               {"unfinished", run.result.unfinished},
               {"end_us", Microseconds(run.result.end)},
               {"fct_us", Percentiles(completion)},
               {"delivery_us", Percentiles(delivery)},
               {"link_traversals", run.result.link_traversals},
               {"events", run.result.events},
               {"retransmissions", run.result.retransmissions},
               {"deadlock", run.result.deadlock},
               {"groups", GroupsOf(run)},
               {"links", LinksOf(run)},
               {"wall_seconds", run.wall_seconds},
               {"max_rss_mb", MaxRssMb()}};
  return json;
}

std::string ToText(const Json& json) {
  std::string text = absl::StrFormat(
      "# weft-sim: %s level, %s, seed %d\n# fabric: %s: %d hosts, %d switches, %d links\n"
      "# workload: %s: %d transfers\n",
      json["level"].get<std::string>(), json["transport"].get<std::string>(),
      json["seed"].get<uint64_t>(), json["fabric"]["name"].get<std::string>(),
      json["fabric"]["hosts"].get<int64_t>(), json["fabric"]["switches"].get<int64_t>(),
      json["fabric"]["links"].get<int64_t>(), json["workload"].get<std::string>(),
      json["transfers"].get<int64_t>());
  if (!json["fct_us"].empty()) {
    absl::StrAppendFormat(&text, "%-14s %10s %10s %10s %10s %10s %10s %10s\n", "us", "mean", "min",
                          "p50", "p90", "p99", "p99.9", "max");
    text += Row("completion", json["fct_us"]) + Row("delivery", json["delivery_us"]);
  }
  for (const Json& group : json["groups"]) {
    if (!group.contains("time_us")) continue;
    absl::StrAppendFormat(&text, "group %-24s %12.2f us  busbw %8.2f GB/s  (%d transfers)\n",
                          group["name"].get<std::string>(), group["time_us"].get<double>(),
                          group["busbw_GBps"].get<double>(), group["transfers"].get<int64_t>());
  }
  const Json& links = json["links"];
  absl::StrAppendFormat(&text, "%-24s %7s %12s %12s %9s %9s %12s\n", "hottest links", "load",
                        "queue max B", "mean B", "marked", "dropped", "paused us");
  for (const Json& link : links["hottest"]) {
    absl::StrAppendFormat(&text, "%-24s %7.3f %12d %12.0f %9d %9d %12.2f\n",
                          link["link"].get<std::string>(), link["load"].get<double>(),
                          link["queue_max"].get<int64_t>(), link["queue_mean"].get<double>(),
                          link["marked"].get<int64_t>(), link["dropped"].get<int64_t>(),
                          link["paused_us"].get<double>());
  }
  absl::StrAppendFormat(
      &text,
      "# links used %d, mean load %.3f; marked %d, dropped %d, sent again %d, paused %.2f us\n",
      links["used"].get<int64_t>(), links["load_mean"].get<double>(),
      links["marked"].get<int64_t>(), links["dropped"].get<int64_t>(),
      json["retransmissions"].get<int64_t>(), links["paused_us"].get<double>());
  if (!json["deadlock"].get<std::string>().empty()) {
    absl::StrAppend(&text, "# DEADLOCK: ", json["deadlock"].get<std::string>(), "\n");
  }
  absl::StrAppendFormat(&text, "# ended at %.2f us; unfinished %d of %d\n",
                        json["end_us"].get<double>(), json["unfinished"].get<int64_t>(),
                        json["operations"].get<int64_t>());
  double wall = json["wall_seconds"].get<double>();
  absl::StrAppendFormat(
      &text, "# %d link traversals in %.2f s: %.2f M/s; %.0f MB\n",
      json["link_traversals"].get<int64_t>(), wall,
      wall > 0 ? static_cast<double>(json["link_traversals"].get<int64_t>()) / wall / 1e6 : 0,
      json["max_rss_mb"].get<double>());
  return text;
}

}  // namespace weft::sim
