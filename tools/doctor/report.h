// The doctor's report: for people, and as JSON.
#ifndef WEFT_TOOLS_DOCTOR_REPORT_H_
#define WEFT_TOOLS_DOCTOR_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/roce/tuning.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/node.h"
#include "tools/doctor/pairs.h"

namespace weft::doctor {

std::string NodeText(const Node& node);
nlohmann::ordered_json NodeJson(const Node& node);

// Errors first; then one line with their numbers.
std::string FindingsText(const Findings& findings);
// "findings", "errors", "warnings", "notes".
void AddFindings(const Findings& findings, nlohmann::ordered_json& json);

// A matrix of Gb/s, a row a sender, and below it latencies.
std::string PairsText(const std::vector<Direction>& directions,
                      const std::vector<std::string>& names);
nlohmann::ordered_json PairsJson(const std::vector<Direction>& directions);

// A line a setting: value, what is wanted where that differs, unit, meaning.
std::string NicsText(const std::vector<net::NicChange>& changes);
nlohmann::ordered_json NicsJson(const std::vector<net::NicChange>& changes);

// 0, or 1 with errors; with `strict` also with warnings.
int ExitStatus(const Findings& findings, bool strict);

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_REPORT_H_
