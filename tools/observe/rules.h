// The rules of diagnose.h, each a pure function of a view.
#ifndef WEFT_TOOLS_OBSERVE_RULES_H_
#define WEFT_TOOLS_OBSERVE_RULES_H_

#include <string>
#include <vector>

#include "tools/observe/diagnose.h"

namespace weft::observe {

struct Stillness {
  bool stands = false;   // nothing has ended for a while, and somebody waits
  int64_t since_ns = 0;  // when anything ended last, on any rank that lives
};
Stillness HowStill(const JobView& view, const DiagnoseOptions& options);

// Finds processes that are gone, stopped, or ended while others wait.
std::vector<Finding> FindEnded(const JobView& view, const Stillness& still);
std::vector<Finding> FindNotFinite(const JobView& view);
// The same number of the same group, but another call; those in the minority are the culprits.
std::vector<Finding> FindDifferentCalls(const JobView& view);
// What ports, devices, cgroups and the program itself say.
std::vector<Finding> FindTold(const JobView& view);
// A rank whose phases go on ending while its step does not, and others wait for it.
std::vector<Finding> FindLivelock(const JobView& view, const DiagnoseOptions& options);
// Explains a job that stands still although every process is there: always one finding.
std::vector<Finding> ExplainStill(const JobView& view, const Stillness& still);
std::vector<Finding> FindSlowRanks(const JobView& view, const DiagnoseOptions& options);
// One step in k, as regularly as that; and a phase that not every step has.
std::vector<Finding> FindPeriodicSlowness(const JobView& view);
std::vector<Finding> FindSlowStorage(const JobView& view);
std::vector<Finding> FindSlowFlows(const JobView& view, const DiagnoseOptions& options);

double MedianStep(const JobView& view);  // seconds
int64_t LastStep(const JobView& view);   // that any rank is at; -1: none says
std::string Seconds(int64_t ns);         // "1.2 s"
std::string PhaseText(const JobView& view, const RankView& rank);  // "in phase data for 1.2 s"
std::vector<int> Waiting(const JobView& view, const std::vector<int>& culprits);  // who is blocked
bool AnyWaitsFor(const std::vector<WaitsFor>& graph, int rank);
std::string CallText(const Call& call);  // "all_reduce #3 of 4096 bytes in group world"

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_RULES_H_
