// What weft-init prints: a table for people, an object for machines.
#ifndef WEFT_TOOLS_INIT_REPORT_H_
#define WEFT_TOOLS_INIT_REPORT_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "tools/init/measure.h"

namespace weft::init {

void PrintTable(const Options& options, const Measurement& measurement);
nlohmann::ordered_json ToJson(const Options& options, const Measurement& measurement);

// `runs`: by ascending ranks. Fits all but the last, shows how well that predicts the last, then
// fits all and predicts sizes beyond.
nlohmann::ordered_json PrintModel(const std::vector<Measurement>& runs);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_REPORT_H_
