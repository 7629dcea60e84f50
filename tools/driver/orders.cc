#include "tools/driver/orders.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::driver {
namespace {

bool AnyAlive(const LocalState& local) {
  return std::any_of(local.ranks.begin(), local.ranks.end(),
                     [](const LocalRank& rank) { return rank.alive; });
}

// Kills what is alive, and then `then`.
std::vector<Order> KillThen(const LocalState& local, Order then) {
  if (AnyAlive(local)) return {{.kind = OrderKind::kKillAll}};
  return {std::move(then)};
}

std::vector<ReplayPart> PartsOf(const recovery::JobState& job, const std::string& host) {
  std::vector<ReplayPart> parts;
  int number = 0;
  for (const recovery::ReplayGroup& group : job.replay->groups) {
    if (group.phase != job.replay->phase) continue;
    const auto at = std::find(group.hosts.begin(), group.hosts.end(), host);
    const auto master = job.hosts.find(group.hosts.front());
    if (at != group.hosts.end() && master != job.hosts.end()) {
      parts.push_back({.group = number,
                       .index = static_cast<int>(at - group.hosts.begin()),
                       .size = static_cast<int>(group.hosts.size()),
                       .master = master->second.address});
    }
    ++number;
  }
  return parts;
}

}  // namespace

std::vector<Order> OrdersFor(const DriverRecord& record, const LocalState& local) {
  const recovery::JobState& job = record.job;
  if (job.outcome.has_value()) {
    if (AnyAlive(local)) return {{.kind = OrderKind::kEndAll}};
    return {{.kind = OrderKind::kExit,
             .exit_status = job.outcome->exit_status,
             .text = absl::StrCat("the job is over: ", job.outcome->reason)}};
  }
  const auto known = job.hosts.find(local.host);
  // Not joined yet, or counted as lost meanwhile: other hosts may have the place of these ranks.
  if (known == job.hosts.end() || known->second.incarnation < local.incarnation) {
    return AnyAlive(local) ? std::vector<Order>{{.kind = OrderKind::kKillAll}}
                           : std::vector<Order>{};
  }
  const recovery::HostState& host = known->second;
  if (host.incarnation > local.incarnation) {
    return KillThen(local, {.kind = OrderKind::kExit,
                            .exit_status = kReplacedStatus,
                            .text = absl::StrCat("another executor has joined as ", local.host)});
  }
  if (host.evicted) {
    return KillThen(local, {.kind = OrderKind::kExit,
                            .exit_status = kEvictedStatus,
                            .text = absl::StrCat(local.host, " is evicted: ", host.reason)});
  }
  std::vector<Order> orders;
  if (host.test > local.test && !local.helps) {
    orders.push_back({.kind = OrderKind::kTest,
                      .test = host.test,
                      .helper = static_cast<int>(host.test_helpers.size())});
  }
  bool helps = local.helps;
  for (const auto& [_, suspect] : job.hosts) {
    if (suspect.test <= local.helped) continue;
    const std::vector<std::string>& helpers = suspect.test_helpers;
    const auto at = std::find(helpers.begin(), helpers.end(), local.host);
    if (at == helpers.end()) continue;
    orders.push_back({.kind = OrderKind::kHelp,
                      .test = suspect.test,
                      .helper = static_cast<int>(at - helpers.begin())});
    helps = true;
  }
  if (job.replay.has_value() && job.replay->task > local.replayed && !helps && !AnyAlive(local)) {
    Order order{.kind = OrderKind::kReplay, .test = job.replay->task};
    order.parts = PartsOf(job, local.host);
    if (!order.parts.empty()) orders.push_back(std::move(order));
  }
  if (host.node != local.node) {
    if (AnyAlive(local)) {
      orders.push_back({.kind = OrderKind::kKillAll});
    } else if (host.node >= 0) {
      orders.push_back({.kind = OrderKind::kTakeNode, .node = host.node});
    }
    return orders;
  }
  if (host.node < 0) return orders;
  for (size_t i = 0; i < local.ranks.size(); ++i) {
    const LocalRank& mine = local.ranks[i];
    const recovery::RankState& wanted =
        job.ranks[static_cast<size_t>(host.node * record.policy.ranks_per_node) + i];
    const bool is_wanted = wanted.runs && wanted.generation == mine.generation;
    const auto local_rank = static_cast<int>(i);
    // One that ends with status 0 on its own is not there any more; one whose end is not told yet
    // is wanted still.
    if (mine.alive && !is_wanted) {
      orders.push_back({.kind = OrderKind::kKillRank, .local_rank = local_rank});
    } else if (!mine.alive && wanted.runs && wanted.generation > mine.generation) {
      orders.push_back({.kind = OrderKind::kStartRank,
                        .local_rank = local_rank,
                        .generation = wanted.generation,
                        .last_end = wanted.last_end});
    }
  }
  return orders;
}

}  // namespace weft::driver
