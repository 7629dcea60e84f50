// The environment that weft-run gives its ranks: torchrun's variables and Weft's own.
#ifndef WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_
#define WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

#include "tools/run/launcher.h"

namespace weft::run {

using Variables = std::map<std::string, std::string>;

// What is the same for all ranks of this host: this process's environment, and the job's.
// `options.settings` have been checked.
Variables JobVariables(const RunOptions& options, const std::string& store,
                       const std::string& secret_hex, int master_port);

// "NAME=value" for one rank, of which `restarts` processes have ended, the last one so.
std::vector<std::string> RankVariables(const Variables& job, const RunOptions& options,
                                       int local_rank, int restarts, const std::string& last_end);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_
