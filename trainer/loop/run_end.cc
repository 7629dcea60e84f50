#include "trainer/loop/run_end.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "trainer/generate/trained_model.h"
#include "trainer/loop/export.h"
#include "trainer/loop/required_files.h"
#include "trainer/loop/run_timeline.h"
#include "trainer/loop/sample_text.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

std::string Path(const EndedRun& run, absl::string_view name) {
  return absl::StrCat(run.run_dir, "/", name);
}

// The model after the last step, from the run's folder. A run that was resumed after that step
// has saved none there: it may have come from another tier.
absl::StatusOr<std::vector<at::Tensor>> LoadLast(const EndedRun& run) {
  const TrainConfig& config = run.config;
  const std::string own = absl::StrCat(Path(run, "checkpoints"), "/", CheckpointName(run.step));
  const std::string& loaded = run.checkpoints.loaded_from();
  absl::StatusOr<std::vector<at::Tensor>> last = LoadModel(own, config.model, config.precision);
  if (last.ok() || run.account.totals().steps > 0 || loaded.empty() || loaded == own) return last;
  return LoadModel(loaded, config.model, config.precision);
}

// On rank 0. `memory`: MemoryUse::Report.
absl::Status WriteModelAndSummary(const EndedRun& run, const std::vector<std::string>& memory,
                                  const ValidationLoss& validation) {
  run.progress->Finish();
  Gpt* model = run.stepper.whole_model();
  std::unique_ptr<Gpt> assembled;
  if (model == nullptr) {  // cut over ranks: put together from the checkpoint of the last step
    if (!run.saver.unsaved().ok()) {
      return Annotate(run.saver.unsaved(), "the model is cut over ranks and not saved");
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors, LoadLast(run));
    assembled = std::make_unique<Gpt>(run.config.model, std::move(tensors));
    model = assembled.get();
  }
  const Tokenizer& tokenizer = *run.data.tokenizer;
  const absl::StatusOr<std::string> sample =
      WriteSample(run.config, *model, tokenizer, Path(run, "sample.txt"));
  WEFT_RETURN_IF_ERROR(
      ExportModel(*model, run.data.tokenizer_path(), tokenizer.eod_id(), Path(run, "model")));
  WEFT_RETURN_IF_ERROR(sample.status());  // a model that writes nothing is exported all the same
  const StepPlan& plan = run.stepper.plan();
  PrintSummary(
      {.run_dir = run.run_dir,
       .sample = *sample,
       .validation = validation,
       .unigram_loss = run.data.unigram_loss,
       .tokens_per_step = run.account.tokens_per_step(),
       .totals = run.account.totals(),
       .has_snapshots = run.has_snapshots,
       .pipeline =
           plan.sizes.pipeline > 1 && run.device.is_cpu() ? ToString(plan.pipeline.kind) : "",
       .memory = memory},
      run.saver, run.checkpoints);
  return absl::OkStatus();
}

absl::Status WriteTrace(const EndedRun& run, RequiredFiles& files) {
  if (run.config.trace_steps == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const RunTimeline timeline,
                        GatherTimeline(*run.trace, run.config.trace_steps, run.group));
  return files.Write("timeline", [&] { return WriteTimeline(timeline, run.run_dir); });
}

// Says again what scrolled away long ago.
void PrintFailures(const EndedRun& run) {
  run.progress->Finish();
  if (run.saver.failed() == 0) return;
  run.progress->Note(absl::StrFormat(
      "%d checkpoints could not be written (metrics.jsonl: checkpoint_failed), the last %s",
      run.saver.failed(), run.saver.last_failed()));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> EndRun(const EndedRun& run) {
  RequiredFiles files(run.group);
  WEFT_RETURN_IF_ERROR(
      files.Write("remote checkpoint", [&] { return run.checkpoints.FinishMirror(); }));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> memory,
                        run.memory.Report(run.stepper.plan(), run.gemm.libraries));
  GiveBackFreeMemory();
  WEFT_RETURN_IF_ERROR(WriteTrace(run, files));
  if (!run.stopped) {
    WEFT_ASSIGN_OR_RETURN(const ValidationLoss validation, run.validation());
    WEFT_RETURN_IF_ERROR(files.Write(
        "sample text and model", [&] { return WriteModelAndSummary(run, memory, validation); }));
  }
  WEFT_RETURN_IF_ERROR(files.Write("metrics", [&] { return run.metrics->Finish(); }));
  if (!run.saver.unsaved().ok()) {
    files.AddMissing(absl::StrCat("checkpoint ", run.saver.last_failed()));
  }
  if (run.group.rank() == 0) PrintFailures(run);
  return files.missing();
}

}  // namespace weft::train
