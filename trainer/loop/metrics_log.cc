#include "trainer/loop/metrics_log.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/plot/metrics.h"

namespace weft {
namespace {

constexpr absl::Duration kRedraw = absl::Seconds(3);

// The whole lines of steps up to `step`.
std::string KeepUpTo(const std::string& text, int64_t step) {
  std::string kept;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number()) continue;
    if (row["step"].get<int64_t>() <= step) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

}  // namespace

std::string ToJson(const StepMetrics& metrics) {
  nlohmann::ordered_json row = {{"step", metrics.step}, {"loss", metrics.loss}};
  if (metrics.validation_loss) row["val_loss"] = *metrics.validation_loss;
  row["grad_norm"] = metrics.gradient_norm;
  row["learning_rate"] = metrics.learning_rate;
  row["tokens"] = metrics.tokens;
  row["tokens_per_second"] = metrics.tokens_per_second;
  row["step_seconds"] = metrics.step_seconds;
  row["exposed_comm_seconds"] = metrics.exposed_seconds;
  row["mfu"] = metrics.mfu;
  return row.dump();
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& run_dir,
                                                             int64_t step,
                                                             std::optional<double> unigram_loss) {
  std::string path = run_dir + "/metrics.jsonl";
  std::string kept;
  if (step > 0) {
    absl::StatusOr<std::string> text = ReadFile(path);
    if (text.ok()) kept = KeepUpTo(*text, step);
  }
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  LossPlot plot;
  if (!kept.empty()) {
    WEFT_ASSIGN_OR_RETURN(plot, ReadLossMetrics(path));
  }
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<MetricsLog> log(new MetricsLog(run_dir, file));
  log->plot_ = std::move(plot);
  log->plot_.title = run_dir;
  log->plot_.unigram = unigram_loss;
  return log;
}

MetricsLog::~MetricsLog() { std::fclose(file_); }

absl::Status MetricsLog::Append(const StepMetrics& metrics) {
  std::string line = ToJson(metrics) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    return ErrnoStatus(errno, absl::StrCat("write ", run_dir_, "/metrics.jsonl"));
  }
  double step = static_cast<double>(metrics.step);
  plot_.train.push_back({step, metrics.loss});
  if (metrics.validation_loss) plot_.validation.push_back({step, *metrics.validation_loss});
  if (absl::Now() - drawn_ < kRedraw) return absl::OkStatus();
  return Draw();
}

absl::Status MetricsLog::Draw() {
  drawn_ = absl::Now();
  return WriteLossSvg(run_dir_ + "/loss.svg", plot_);
}

}  // namespace weft
