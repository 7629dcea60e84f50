// What weft-bw prints: nccl-tests' table for people, or one JSON object. Rank 0's business.
#ifndef WEFT_TOOLS_BW_REPORT_H_
#define WEFT_TOOLS_BW_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/bw/measure.h"
#include "tools/bw/options.h"

namespace weft::bw {

class Report {
 public:
  // `links` describes how the ranks are connected: a line a link.
  Report(const Options& options, int ranks) : options_(options), ranks_(ranks) {}

  // `joined`: where the time of joining the job went, in a line; may be empty.
  void Begin(const std::string& joined);
  // A table of its own for each operation.
  void BeginOperation(const OperationInfo& info);
  // `chosen`: by the planner, of several algorithms.
  void Row(const Case& what, const Result& out_of_place, const Result& in_place,
           bool chosen = false);
  // By algorithm: how much longer than the fastest the chosen one takes; nothing, where none was
  // measured.
  void AddRegret(const Case& what, absl::Span<const Result> results, size_t chosen);
  // `links`: how the ranks were connected, a line a link.
  void End(const std::string& links);

  int64_t wrong() const { return wrong_; }

 private:
  std::string Columns(const Case& what, const Result& result);
  nlohmann::ordered_json Json(const Case& what, const Result& result);
  double BusBandwidth(const Case& what, const Result& result) const;  // GB/s
  double AlgorithmBandwidth(const Case& what, const Result& result) const;

  const Options& options_;
  const int ranks_;
  int64_t wrong_ = 0;  // elements
  double busbw_sum_ = 0;
  int busbw_count_ = 0;
  std::vector<double> regrets_;  // of all cases compared: 0.05 for 5 %
  double regret_max_ = -1;
  std::string regret_max_at_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_REPORT_H_
