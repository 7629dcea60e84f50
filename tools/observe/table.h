// A job as weft-top shows it: as a table for people, or as JSON.
#ifndef WEFT_TOOLS_OBSERVE_TABLE_H_
#define WEFT_TOOLS_OBSERVE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/observe/diagnose.h"

namespace weft::observe {

// At most `rows` ranks, those that findings blame first; 0: all.
std::string JobTable(const JobView& view, const std::vector<Finding>& findings, size_t rows);
// `received`: bytes that came from agents so far.
std::string JobJson(const JobView& view, const std::vector<Finding>& findings,
                    uint64_t received = 0);

// Tokens of a whole step over the median duration of the ranks' last steps; 0: unknown.
double TokensPerSecond(const JobView& view);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_TABLE_H_
