#include "trainer/loop/run_start.h"

#include <cstdio>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "trainer/device/device.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

// The lines of a config's text whose values are not the defaults, below their sections.
std::string ChangedSettings(const std::string& text) {
  const absl::StatusOr<TrainConfig> standard = LoadTrainConfig("", {});
  if (!standard.ok()) return text;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> defaults = absl::StrSplit(standard->text, '\n');
  std::string changed;
  absl::string_view section, named;
  for (size_t i = 0; i < lines.size(); ++i) {  // the same keys in one order
    if (absl::StartsWith(lines[i], "[")) section = lines[i];
    if (i < defaults.size() && lines[i] == defaults[i]) continue;
    if (named != section) absl::StrAppend(&changed, section, "\n");
    named = section;
    absl::StrAppend(&changed, lines[i], "\n");
  }
  return changed;
}

// " (tensor 2 x context 1 x data 1 x pipeline 2, 8 micro-batches, 1f1b)"; "" where all ranks are
// data-parallel.
std::string DescribeLayout(const StepPlan& plan) {
  if (plan.sizes.tensor * plan.sizes.context * plan.pipeline.depth() == 1) return "";
  std::string text = absl::StrCat(" (tensor ", plan.sizes.tensor, " x context ", plan.sizes.context,
                                  " x data ", plan.sizes.data, " x pipeline ", plan.sizes.pipeline,
                                  ", ", plan.pipeline.micro_batches, " micro-batches");
  if (plan.sizes.pipeline > 1) absl::StrAppend(&text, ", ", ToString(plan.pipeline.kind));
  return text + ")";
}

void PrintRates(const KernelRates& row, Progress& progress) {
  std::string text = absl::StrFormat("rate %-22s  %5d rows: weft %4.0f, aten %4.0f", row.name,
                                     row.rows, row.weft / 1e9, row.aten / 1e9);
  if (row.onednn > 0) absl::StrAppendFormat(&text, ", onednn %4.0f", row.onednn / 1e9);
  absl::StrAppend(&text, " GFLOP/s");
  if (row.part < 1) absl::StrAppendFormat(&text, ", from %.1f %% of the shape", 100 * row.part);
  progress.Note(text);
}

void NoteResumed(const RunStart& start, Progress& progress) {
  const ReadTotals& read = start.read;
  auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  progress.Note(absl::StrFormat("resumed after step %d, from %s", start.step, start.loaded_from));
  progress.Note(absl::StrFormat(
      "read %.1f MiB of it, where %.1f is the least; the ranks needed %.1f MiB, %.1f of them "
      "passed on by others",
      mebibytes(read.read_bytes), mebibytes(read.minimum_bytes), mebibytes(read.needed_bytes),
      mebibytes(read.passed_bytes)));
}

}  // namespace

void PrintStart(const RunStart& start, Progress& progress) {
  absl::FPrintF(stderr, "%s(what differs from the defaults; all settings: %s)\n\n",
                ChangedSettings(start.config.text), absl::StrCat(start.run_dir, "/config.toml"));
  progress.Note(absl::StrFormat(
      "%.2f M parameters, %d ranks%s x %d threads, %s compute on %s, products by %s, "
      "attention by %s, peak %.0f GFLOP/s",
      static_cast<double>(ElementCount(GptParameters(start.config.model))) / 1e6, start.ranks,
      DescribeLayout(start.plan), start.threads, NameOf(start.config.precision),
      DescribeDevice(start.device), start.gemm.description, start.attention.description,
      start.peak_flops / 1e9));
  for (const std::string& dataset : start.datasets) progress.Note(absl::StrCat("data ", dataset));
  if (!start.bound_threads.empty()) {
    progress.Note(absl::StrCat("compute threads ", start.bound_threads));
  }
  if (!start.cores.empty()) progress.Note(absl::StrCat("cores: ", start.cores));
  if (start.packed.count() > 0) {
    progress.Note(absl::StrFormat("weights packed once a step: %.1f MiB (train.pack_weights)",
                                  static_cast<double>(start.packed.count()) / (1 << 20)));
  } else if (start.wants_packed && !start.config.pack_weights) {
    progress.Note("weights are not packed once a step: there is no memory for the copies");
  }
  for (const KernelChoice* choice : {&start.gemm, &start.attention}) {
    for (const KernelRates& row : choice->rates) PrintRates(row, progress);
    if (!choice->note.empty()) progress.Note(choice->note);
  }
  if (start.resumed) {
    NoteResumed(start, progress);
  } else if (start.resume) {
    progress.Note("no checkpoint yet: starting from the beginning");
  }
}

}  // namespace weft::train
