#include "tools/run/rank_environment.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/settings.h"
#include "topology/host/affinity.h"

namespace weft::run {

Variables ProcessVariables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::pair<std::string, std::string> parts = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    variables.insert(std::move(parts));
  }
  return variables;
}

Variables JobVariables(const RunOptions& options, const std::string& store,
                       const std::string& secret_hex, int master_port) {
  Variables variables = ProcessVariables();
  for (const std::string& pair : options.settings) {
    std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    variables[EnvironmentName(parts.first)] = parts.second;
  }
  // A job in a job: an outer torchrun's store is not ours.
  for (const char* name : {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "WEFT_RECOVER",
                           "WEFT_LAST_END", "WEFT_LAST_END_NS", "WEFT_GENERATION_NS"}) {
    variables.erase(name);
  }
  variables["MASTER_ADDR"] = options.master_addr;
  variables["MASTER_PORT"] = absl::StrCat(master_port);
  variables["WORLD_SIZE"] = absl::StrCat(options.ranks * options.nodes);
  variables["LOCAL_WORLD_SIZE"] = absl::StrCat(options.ranks);
  variables["GROUP_RANK"] = absl::StrCat(options.node_rank);
  for (const auto& [name, value] : options.planned.variables) variables[name] = value;
  variables["WEFT_STORE"] = store;
  variables["WEFT_STORE_PATIENCE"] = absl::FormatDuration(options.store_patience);
  variables["WEFT_JOB_SECRET"] = secret_hex;
  variables["WEFT_JOB_ID"] = options.job;
  if (options.recover > 0) variables["WEFT_RECOVER"] = absl::StrCat(options.recover);
  const int cores = AllowedCores();
  variables["WEFT_JOB_CORES"] = absl::StrCat(cores);
  variables.try_emplace("OMP_NUM_THREADS", absl::StrCat(std::max(1, cores / options.ranks)));
  return variables;
}

Variables RankVariables(const Variables& job, const RankProcess& rank) {
  Variables variables;
  variables["RANK"] = absl::StrCat(rank.rank);
  variables["LOCAL_RANK"] = absl::StrCat(rank.local_rank);
  if (rank.restarts > 0) {
    int generation = 0;
    const auto before = job.find("WEFT_GENERATION");
    if (before != job.end()) (void)absl::SimpleAtoi(before->second, &generation);
    variables["WEFT_GENERATION"] = absl::StrCat(generation + rank.restarts);
    variables["WEFT_LAST_END"] = rank.last_end;
    // The end of the process before it, which on another host is not known; and now.
    if (rank.ended > absl::UnixEpoch()) {
      variables["WEFT_LAST_END_NS"] = absl::StrCat(absl::ToUnixNanos(rank.ended));
    }
    variables["WEFT_GENERATION_NS"] = absl::StrCat(SystemClock::Nanoseconds());
  }
  return variables;
}

std::vector<std::string> Lines(const Variables& first, const Variables& others) {
  Variables all = first;
  all.insert(others.begin(), others.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : all) lines.push_back(absl::StrCat(name, "=", value));
  return lines;
}

}  // namespace weft::run
