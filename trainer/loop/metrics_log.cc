#include "trainer/loop/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/plot/metrics.h"

namespace weft::train {
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
  row["exposed_comm_seconds"] = metrics.exposed.total();
  row["exposed_data_seconds"] = metrics.exposed.data;
  row["exposed_tensor_seconds"] = metrics.exposed.tensor;
  row["exposed_context_seconds"] = metrics.exposed.context;
  row["exposed_expert_seconds"] = metrics.exposed.expert;
  row["exposed_pipeline_seconds"] = metrics.exposed.pipeline;
  row["mfu"] = metrics.mfu;
  row["tensor_bytes"] = metrics.tensors.count();
  row["anonymous_bytes"] = metrics.anonymous.count();
  if (metrics.router) {
    row["balance_loss"] = metrics.router->balance_loss;
    row["router_z_loss"] = metrics.router->z_loss;
    row["dropped_choices"] = metrics.router->dropped;
  }
  return row.dump();
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& run_dir,
                                                             int64_t step,
                                                             std::optional<double> unigram_loss,
                                                             bool tensorboard) {
  std::string path = run_dir + "/metrics.jsonl";
  std::string kept;
  if (step > 0) {
    absl::StatusOr<std::string> text = ReadFile(path, kMetricsMost);
    if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
    if (text.ok()) kept = KeepUpTo(*text, step);
  }
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  LossPlot plot;
  if (!kept.empty()) {
    WEFT_ASSIGN_OR_RETURN(plot, ReadLossMetrics(path));
  }
  int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<MetricsLog> log(new MetricsLog(run_dir, file));
  log->plot_ = std::move(plot);
  log->plot_.title = run_dir;
  log->plot_.unigram = unigram_loss;
  if (tensorboard) {
    WEFT_ASSIGN_OR_RETURN(log->tensorboard_,
                          TensorBoardLog::Open(run_dir + "/tensorboard", absl::Now()));
  }
  return log;
}

MetricsLog::~MetricsLog() { close(file_); }

absl::Status MetricsLog::Flush() {
  while (!unwritten_.empty()) {
    ssize_t written = write(file_, unwritten_.data(), unwritten_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", run_dir_, "/metrics.jsonl"));
    unwritten_.erase(0, static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

void MetricsLog::Write(const std::string& line) {
  absl::StrAppend(&unwritten_, line, "\n");
  absl::Status status = Flush();
  if (!status.ok() && !warned_) {
    WEFT_LOG_WARN(status.message(), "; the lines are kept in memory and tried again");
  }
  warned_ = !status.ok();
}

// The file ends with the first line that cannot be written: the run goes on.
void MetricsLog::AppendToTensorBoard(const StepMetrics& metrics) {
  if (tensorboard_ == nullptr) return;
  std::vector<std::pair<const char*, double>> values = {
      {"loss/train", metrics.loss},
      {"optimizer/gradient_norm", metrics.gradient_norm},
      {"optimizer/learning_rate", metrics.learning_rate},
      {"speed/tokens_per_second", metrics.tokens_per_second},
      {"speed/step_seconds", metrics.step_seconds},
      {"speed/mfu", metrics.mfu},
      {"exposed_seconds/data", metrics.exposed.data},
      {"exposed_seconds/tensor", metrics.exposed.tensor},
      {"exposed_seconds/pipeline", metrics.exposed.pipeline}};
  if (metrics.validation_loss) values.emplace_back("loss/validation", *metrics.validation_loss);
  const absl::Status status = tensorboard_->Append(metrics.step, absl::Now(), values);
  if (status.ok()) return;
  WEFT_LOG_WARN(status.message(), "; no more events for TensorBoard");
  tensorboard_.reset();
}

void MetricsLog::Append(const StepMetrics& metrics) {
  Write(ToJson(metrics));
  AppendToTensorBoard(metrics);
  double step = static_cast<double>(metrics.step);
  plot_.train.push_back({step, metrics.loss});
  if (metrics.validation_loss) plot_.validation.push_back({step, *metrics.validation_loss});
  if (absl::Now() - drawn_ < kRedraw) return;
  absl::Status drawn = Draw();
  if (!drawn.ok()) WEFT_LOG_WARN(drawn.message());
}

void MetricsLog::AppendFailedCheckpoint(int64_t step, absl::string_view reason) {
  nlohmann::ordered_json row = {{"step", step}, {"checkpoint_failed", std::string(reason)}};
  Write(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void MetricsLog::AppendSkipped(int64_t step, absl::string_view reason) {
  nlohmann::ordered_json row = {{"step", step}, {"skipped", std::string(reason)}};
  Write(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status MetricsLog::Finish() {
  absl::Status status = Flush();
  status.Update(Draw());
  return status;
}

absl::Status MetricsLog::Draw() {
  drawn_ = absl::Now();
  return WriteLossSvg(run_dir_ + "/loss.svg", plot_);
}

}  // namespace weft::train
