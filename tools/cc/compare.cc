#include "tools/cc/compare.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::cc {
namespace {

Scenario Roce(std::string name, std::string meaning, std::string fabric, std::string workload) {
  Scenario scenario;
  scenario.name = std::move(name);
  scenario.meaning = std::move(meaning);
  scenario.fabric = std::move(fabric);
  scenario.workload = std::move(workload);
  // RED as for a path of some 10 us at 400 Gb/s: marks before PFC's thresholds.
  scenario.packet.ecn = {.enabled = true,
                         .min = Bytes(100'000),
                         .max = Bytes(400'000),
                         .probability_max = 0.2,
                         .reference = Bandwidth()};
  scenario.packet.pfc.enabled = true;
  scenario.packet.switch_buffer = Bytes(64'000'000);
  scenario.packet.limit = absl::Milliseconds(100);
  return scenario;
}

std::vector<Scenario> MakeScenarios() {
  const char* fabric = "leaf-spine:leaves=4,hosts_per_leaf=16,spines=16,delay=1us";
  std::vector<Scenario> all = {
      Roce("permutation", "each of 64 hosts sends 4 MB to one other", fabric,
           "permutation:bytes=4MB"),
      Roce("incast", "32 hosts send 2 MB each to one", fabric, "incast:fan_in=32,bytes=2MB"),
      Roce("all-to-all", "64 hosts send 128 KiB to each other", fabric, "full_mesh:bytes=128KiB"),
      Roce("ring", "ring all-reduce of 32 MiB on 64 hosts", fabric,
           "all_reduce:algorithm=ring,bytes=32MiB"),
      Roce("slow-link", "the permutation with one cable at a quarter of its speed", fabric,
           "permutation:bytes=4MB"),
      Roce("dead-link", "the permutation; a cable dies after 50 us, and nobody is told", fabric,
           "permutation:bytes=4MB")};
  all[4].broken = all[5].broken = "leaf0>spine1";
  all[4].broken_to = Bandwidth::GigabitsPerSecond(100);
  all[5].broken_at = absl::Microseconds(50);
  return all;
}

absl::StatusOr<std::vector<Scenario>> Select(const std::vector<std::string>& names) {
  if (names.empty()) return AllScenarios();
  std::vector<Scenario> selected;
  for (const std::string& name : names) {
    auto found = std::find_if(AllScenarios().begin(), AllScenarios().end(),
                              [&](const Scenario& one) { return one.name == name; });
    if (found == AllScenarios().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no scenario '", name, "'; there are ",
          absl::StrJoin(AllScenarios(), ", ", [](std::string* out, const Scenario& one) {
            absl::StrAppend(out, one.name);
          })));
    }
    selected.push_back(*found);
  }
  return selected;
}

}  // namespace

const std::vector<Scenario>& AllScenarios() {
  static const std::vector<Scenario> all = MakeScenarios();
  return all;
}

absl::StatusOr<std::vector<CompareRow>> Compare(
    const CompareOptions& options, absl::FunctionRef<void(size_t done, size_t all)> done) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Scenario> scenarios, Select(options.scenarios));
  // All words before the first run: a wrong one would cost what was run before it.
  struct Choice {
    std::string controller, policy;
    net::multipath::SimulatedOptions protocol;
  };
  std::vector<Choice> choices;
  for (const std::string& controller : options.controllers) {
    for (const std::string& policy : options.policies) {
      Choice& choice = choices.emplace_back(Choice{controller, policy, {}});
      WEFT_ASSIGN_OR_RETURN(choice.protocol.controller, net::ParseController(controller));
      WEFT_ASSIGN_OR_RETURN(choice.protocol.policy, net::ParsePolicy(policy));
      choice.protocol.paths = options.paths;
    }
  }
  const size_t all = scenarios.size() * choices.size();
  std::vector<CompareRow> rows;
  for (Scenario& scenario : scenarios) {
    scenario.packet.seed = options.seed;
    for (const Choice& choice : choices) {
      WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(scenario, choice.protocol));
      rows.push_back({scenario.name, choice.controller, choice.policy, outcome});
      done(rows.size(), all);
    }
  }
  return rows;
}

std::string ToText(const std::vector<CompareRow>& rows) {
  std::string text;
  std::string scenario;
  for (const CompareRow& row : rows) {
    const Outcome& one = row.outcome;
    if (row.scenario != scenario) {
      scenario = row.scenario;
      auto found = std::find_if(AllScenarios().begin(), AllScenarios().end(),
                                [&](const Scenario& each) { return each.name == scenario; });
      absl::StrAppendFormat(&text, "\n%s: %s\n%-16s %-12s %8s %9s %9s %9s %11s %9s %8s %10s\n",
                            scenario, found->meaning, "controller", "policy", "goodput", "p50 us",
                            "p99 us", "max us", "queue KB", "fairness", "resent", "paused us");
    }
    absl::StrAppendFormat(
        &text, "%-16s %-12s %8.3f %9.1f %9.1f %9.1f %11.0f %9.3f %8d %10.0f%s\n", row.controller,
        row.policy, one.goodput, one.fct_p50_us, one.fct_p99_us, one.fct_max_us, one.queue_mean_kb,
        one.fairness, one.retransmissions, one.paused_us,
        one.unfinished > 0 ? absl::StrCat("  ", one.unfinished, " never ended") : "");
  }
  return text;
}

nlohmann::ordered_json ToJson(const std::vector<CompareRow>& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const CompareRow& row : rows) {
    nlohmann::ordered_json one = {
        {"scenario", row.scenario}, {"controller", row.controller}, {"policy", row.policy}};
    one.update(ToJson(row.outcome));
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace weft::cc
