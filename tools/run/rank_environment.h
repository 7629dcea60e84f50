// The environment that weft-run gives its ranks: torchrun's variables and Weft's own.
#ifndef WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_
#define WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

#include "tools/run/launcher.h"
#include "tools/run/rank_process.h"

namespace weft::run {

using Variables = std::map<std::string, std::string>;

Variables ProcessVariables();  // this process's environment

// What is the same for all ranks of this host: this process's environment, and the job's.
// `options.settings` have been checked.
Variables JobVariables(const RunOptions& options, const std::string& store,
                       const std::string& secret_hex, int master_port);

// What `rank` has beside the variables of its job.
Variables RankVariables(const Variables& job, const RankProcess& rank);

// "NAME=value" of all, `first` before the same names of `others`.
std::vector<std::string> Lines(const Variables& first, const Variables& others);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_RANK_ENVIRONMENT_H_
