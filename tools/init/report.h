// What weft-init prints: a table for people, an object for machines.
#ifndef WEFT_TOOLS_INIT_REPORT_H_
#define WEFT_TOOLS_INIT_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/init/measure.h"
#include "tools/init/nccl.h"
#include "tools/init/new_group.h"
#include "tools/init/ops.h"

namespace weft::init {

void PrintTable(const Options& options, const Measurement& measurement);
nlohmann::ordered_json ToJson(const Options& options, const Measurement& measurement);

// `runs`: by ascending ranks. Fits all but the last, shows how well that predicts the last, then
// fits all and predicts sizes beyond.
nlohmann::ordered_json PrintModel(const std::vector<Measurement>& runs);

nlohmann::ordered_json PrintOps(const Options& options, const OpsMeasurement& ops);
nlohmann::ordered_json PrintNewGroup(const NewGroupMeasurement& measurement);
nlohmann::ordered_json PrintNccl(const Options& options, const NcclMeasurement& measurement);

// "1.25 ms"
std::string TimeText(double seconds);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_REPORT_H_
