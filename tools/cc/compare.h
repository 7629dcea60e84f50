// weft-cc compare: every controller with every path policy on a set of scenarios.
#ifndef WEFT_TOOLS_CC_COMPARE_H_
#define WEFT_TOOLS_CC_COMPARE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/cc/run.h"

namespace weft::cc {

// By name; each a two-tier fabric of 400 Gb/s with ECN and PFC as a RoCE cluster has them.
const std::vector<Scenario>& AllScenarios();

struct CompareOptions {
  std::vector<std::string> scenarios;    // empty: all
  std::vector<std::string> controllers;  // as ParseController() takes them
  std::vector<std::string> policies;
  int paths = 64;
  uint64_t seed = 1;
};

struct CompareRow {
  std::string scenario, controller, policy;
  Outcome outcome;
};

// `done` is called after each run, with how many there are in all.
absl::StatusOr<std::vector<CompareRow>> Compare(
    const CompareOptions& options, absl::FunctionRef<void(size_t done, size_t all)> done);

std::string ToText(const std::vector<CompareRow>& rows);
nlohmann::ordered_json ToJson(const std::vector<CompareRow>& rows);

}  // namespace weft::cc

#endif  // WEFT_TOOLS_CC_COMPARE_H_
