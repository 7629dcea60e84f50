// What weft-nccl-harness prints, for people and for machines.
#ifndef WEFT_TOOLS_NCCL_HARNESS_REPORT_H_
#define WEFT_TOOLS_NCCL_HARNESS_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/nccl_harness/runner.h"

namespace weft::harness {

void PrintContracts();
void PrintHead(const PluginInfo& plugin, const Options& options);
void PrintOutcome(const Outcome& outcome);
bool Keeps(const std::vector<Outcome>& outcomes);  // every contract, all tried
void PrintVerdict(const std::vector<Outcome>& outcomes);
absl::Status WriteJson(const std::string& path, const PluginInfo& plugin, const Options& options,
                       const std::vector<Outcome>& outcomes);

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_REPORT_H_
