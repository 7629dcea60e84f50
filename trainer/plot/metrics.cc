#include "trainer/plot/metrics.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using Json = nlohmann::json;

void DropFrom(std::vector<PlotPoint>& points, double step) {
  while (!points.empty() && points.back().step >= step) points.pop_back();
}

// False when the member is there but no number.
bool AddPoint(const Json& row, const char* key, double step, std::vector<PlotPoint>& points) {
  auto member = row.find(key);
  if (member == row.end()) return true;
  if (!member->is_number() && !member->is_null()) return false;
  points.push_back(
      {step, member->is_null() ? std::numeric_limits<double>::quiet_NaN() : member->get<double>()});
  return true;
}

bool AddRow(const Json& row, LossPlot& plot) {
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number()) return false;
  if (!row.contains("loss")) return true;
  double step = row["step"].get<double>();
  DropFrom(plot.train, step);
  DropFrom(plot.validation, step);
  return AddPoint(row, "loss", step, plot.train) &&
         AddPoint(row, "val_loss", step, plot.validation);
}

}  // namespace

absl::StatusOr<LossPlot> ReadLossMetrics(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMetricsMost);
  if (!text.ok()) return text.status();
  LossPlot plot;
  std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    Json row = Json::parse(lines[i].begin(), lines[i].end(), nullptr, /*allow_exceptions=*/false);
    if (AddRow(row, plot)) continue;
    if (i + 1 == lines.size()) break;  // no line break behind it: half-written
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", i + 1,
                     ": not an object with the numbers 'step', 'loss' and perhaps 'val_loss'"));
  }
  return plot;
}

}  // namespace weft::train
