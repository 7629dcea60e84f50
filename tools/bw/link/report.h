// What weft-bw link prints: perftest's columns for people, or one JSON object; and whether the
// limits were kept. Rank 0's business.
#ifndef WEFT_TOOLS_BW_LINK_REPORT_H_
#define WEFT_TOOLS_BW_LINK_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/bw/link/measure.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

class Report {
 public:
  // Prints nothing if `silent`: what other ranks than 0 do.
  Report(const Options& options, int ranks, bool silent);

  void Begin(const std::string& links);  // a line a link
  // `last`: of all rows.
  void Add(const Row& row, bool last);
  // Writes the JSON, and says which limit was missed.
  absl::Status End();

  bool limits_kept() const;
  int64_t wrong() const { return wrong_; }

 private:
  bool prints() const { return !silent_ && options_.json != "-"; }
  double Scaled(double bytes_per_second) const;
  void PrintHead() const;
  void PrintRow(const Row& row) const;
  void PrintFlows(const Row& row) const;
  void PrintLanes(const Row& row) const;
  nlohmann::ordered_json Json(const Row& row) const;
  std::vector<std::string> Missed() const;

  const Options& options_;
  const int ranks_;
  const bool silent_;
  int64_t wrong_ = 0;
  double best_gbps_ = -1, best_usec_ = -1;    // of all rows; below 0: none
  double worst_gbps_ = -1, worst_usec_ = -1;  // of flows in turn
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::vector<std::string> links_;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_REPORT_H_
