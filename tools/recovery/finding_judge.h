// From what a diagnosis finds to what is acted on: a finding that is there twice in a row, once.
// weft-driver judges the records of all hosts (job_diagnosis.h), weft-run those of its own. No I/O;
// not thread-safe.
#ifndef WEFT_TOOLS_RECOVERY_FINDING_JUDGE_H_
#define WEFT_TOOLS_RECOVERY_FINDING_JUDGE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/observe/diagnose.h"
#include "tools/recovery/decisions.h"

namespace weft::recovery {

struct Diagnosed {
  std::vector<int> ranks;  // each is a culprit
  Blame blame = Blame::kRank;
  std::string text;  // one line
};

// What of a finding is acted on; none: it is for people, or other events tell it.
std::optional<Blame> BlameOf(observe::Fault fault);

// The bounds of a diagnosis that is acted on: a job stands still after `still`.
observe::DiagnoseOptions JudgedDiagnosis(absl::Duration still);

class FindingJudge {
 public:
  struct News {
    std::vector<Diagnosed> diagnosed;  // to be acted on
    std::vector<std::string> lines;    // all that is new, for people
  };
  // What is new, of all findings of one look.
  News Look(const std::vector<observe::Finding>& findings);

 private:
  std::map<std::string, int> seen_;  // looks in a row, by finding
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_FINDING_JUDGE_H_
