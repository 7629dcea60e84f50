#include "trainer/kernel_choice/kernel_choice.h"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine_cache.h"
#include "base/status.h"
#include "base/write_file.h"
#include "trainer/files/file.h"
#include "trainer/kernel_choice/trial_file.h"
#include "trainer/kernel_choice/trial_work.h"
#include "trainer/kernels/gemm.h"

namespace weft::train {
namespace {

// The share that products have of the time for both trials: attention has one or two shapes,
// products have a dozen.
constexpr double kPartOfProducts = 0.8;

// Whether `file` is now there: this trial, or, where `replaces` is false, who came first's.
bool Write(const std::string& text, const std::string& file, bool replaces) {
  if (!MakeFolders(ParentFolder(file)).ok()) return false;
  return (replaces ? WriteFile(file, text) : WriteNewFile(file, text)).ok();
}

std::optional<std::string> Read(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) return std::nullopt;
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// A trial whose threads shared cores with other programs is worth a better one.
std::string NoteOfLoad(const KernelTrial& trial) {
  const double cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  constexpr double kNoise = 0.25;  // cores
  if (trial.other_cores + at::get_num_threads() <= cores + kNoise) return "";
  return absl::StrFormat(
      "was measured while other processes used %.1f of %.0f cores: --measure-kernels on an idle "
      "machine makes a better one",
      trial.other_cores, cores);
}

std::string Describe(const KernelTrial& trial, TrialOf what, const TrainConfig& config,
                     const KernelChoice& choice) {
  std::string others, rates;
  for (KernelLibrary library : LibrariesOf(what, config)) {
    absl::StrAppendFormat(&rates, "%s %.0f, ", NameOf(library), trial.TotalRate(library) / 1e9);
    const int count = what == TrialOf::kGemm ? choice.libraries.CountOf(library) : 0;
    if (count == 0) continue;
    absl::StrAppendFormat(&others, "%s %s for %d", others.empty() ? ", but" : ",", NameOf(library),
                          count);
  }
  if (!others.empty()) absl::StrAppend(&others, " of ", trial.rates.size());
  const std::string all = what == TrialOf::kGemm ? std::string(NameOf(choice.libraries.all()))
                                                 : choice.attention.ToText();
  return absl::StrFormat("%s%s (of one rank, GFLOP/s: %sregisters %.0f)", all, others, rates,
                         trial.register_peak / 1e9);
}

// "forward.384x1152" of three products as "384x1152r1024u2"; what is not so everywhere is said.
std::string ShapesOf(const TrainConfig& config, const StepPlan& plan) {
  std::string text;
  for (const TrialProduct& product : ProductsOf(config, plan)) {
    if (product.shape.pass != GemmPass::kForward) continue;
    absl::StrAppend(&text, text.empty() ? "" : "_", product.shape.inputs, "x",
                    product.shape.outputs, "r", product.rows);
    if (product.uses > 1) absl::StrAppend(&text, "u", product.uses);
  }
  if (plan.pipeline.micro_batches > 1) absl::StrAppend(&text, "-adds");
  if (plan.ReducesInFp32(config)) absl::StrAppend(&text, "-fp32");
  return text;
}

std::string AttentionShapes(const TrainConfig& config, const StepPlan& plan) {
  const ModelConfig& model = config.model;
  std::string text =
      absl::StrCat(model.heads, ".", model.KvHeads(), "x", model.hidden / model.heads, "x",
                   model.sequence, "r", plan.micro_rows, "t", plan.sizes.tensor, "c",
                   config.context_method == ContextMethod::kUlysses ? plan.sizes.context : 1);
  for (int64_t window : WindowsOf(model)) absl::StrAppend(&text, "w", window);
  return text;
}

// The choice that `text` says; none where it says none.
std::optional<KernelChoice> ChoiceFrom(TrialOf what, absl::string_view text) {
  KernelChoice choice;
  if (what == TrialOf::kGemm) {
    const std::optional<GemmLibraries> libraries = GemmLibraries::FromText(text);
    if (!libraries) return std::nullopt;
    choice.libraries = *libraries;
  } else {
    const std::optional<AttentionLibraries> libraries = AttentionLibraries::FromText(text);
    if (!libraries) return std::nullopt;
    choice.attention = *libraries;
  }
  choice.text = std::string(text);
  return choice;
}

KernelChoice OneForAll(TrialOf what, KernelLibrary library, absl::string_view why) {
  KernelChoice choice = *ChoiceFrom(what, NameOf(library));
  choice.description = absl::StrCat(choice.text, why);
  return choice;
}

}  // namespace

KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const StepPlan& plan,
                      const std::string& file, double seconds, bool anew) {
  const double mine = seconds * (what == TrialOf::kGemm ? kPartOfProducts : 1 - kPartOfProducts);
  std::string damage;
  const std::optional<std::string> text = file.empty() || anew ? std::nullopt : Read(file);
  if (text) {
    absl::StatusOr<KernelTrial> kept = ParseTrial(*text, what, config, plan);
    if (kept.ok()) {
      kept->note = NoteOfLoad(*kept);
      return *std::move(kept);
    }
    damage = absl::StrCat("is damaged and was measured anew: ", kept.status().message());
  }
  KernelTrial trial = Try(what, config, plan, mine);
  if (!file.empty() &&
      Write(ToText(trial, what, config), file, /*replaces=*/anew || !damage.empty())) {
    const std::optional<std::string> written = Read(file);
    absl::StatusOr<KernelTrial> kept = ParseTrial(written.value_or(""), what, config, plan);
    if (kept.ok()) trial = *std::move(kept);
  }
  trial.note = damage.empty() ? NoteOfLoad(trial) : damage;
  return trial;
}

std::string TrialFile(TrialOf what, const TrainConfig& config, const StepPlan& plan) {
  const bool is_gemm = what == TrialOf::kGemm;
  const std::string folder = MachineCacheFile(is_gemm ? "gemm" : "attention");
  if (folder.empty()) return "";
  return absl::StrCat(folder, "/torch-", TORCH_VERSION, "-", kernels::Gemm().instruction_set, "-",
                      NameOf(config.precision), "-",
                      is_gemm ? ShapesOf(config, plan) : AttentionShapes(config, plan), "-",
                      at::get_num_threads());
}

absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, const StepPlan& plan,
                                    absl::string_view kept, Group& group, double measure) {
  const bool is_gemm = what == TrialOf::kGemm;
  const KernelLibrary set = is_gemm ? config.gemm : config.attention;
  if (set == KernelLibrary::kOneDnn && !HasOneDnn()) {
    return absl::InvalidArgumentError(
        "train.gemm = onednn: this LibTorch has no oneDNN that can be called on this CPU (2.11's "
        "needs AVX-512); aten, weft or auto");
  }
  if (config.precision == Precision::kFp16) {
    const bool is_other = set != KernelLibrary::kAuto && set != KernelLibrary::kAten;
    return OneForAll(what, KernelLibrary::kAten, is_other ? " (alone for fp16)" : "");
  }
  if (set != KernelLibrary::kAuto) {
    return OneForAll(what, set, is_gemm ? " (train.gemm)" : " (train.attention)");
  }
  if (config.device != DeviceKind::kCpu) {
    KernelChoice choice = OneForAll(what, KernelLibrary::kAten, "");
    choice.text = std::string(kept);
    return choice;
  }
  if (measure <= 0) {
    if (std::optional<KernelChoice> before = ChoiceFrom(what, kept)) {
      before->description = absl::StrCat(kept, " (as before)");
      return *std::move(before);
    }
  }
  KernelTrial trial;
  const std::string file = TrialFile(what, config, plan);
  absl::Status tried;  // in up to ten minutes (--measure-kernels)
  WEFT_RETURN_IF_ERROR(group.RunOnFirst(
      [&] {
        trial = KeptTrial(what, config, plan, file, measure > 0 ? measure : kTrialSeconds,
                          /*anew=*/measure > 0);
        return absl::OkStatus();
      },
      tried));
  WEFT_RETURN_IF_ERROR(tried);
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        group.FromFirst(group.rank() == 0 ? trial.Faster() : ""));
  std::optional<KernelChoice> choice = ChoiceFrom(what, text);
  if (!choice) {
    return absl::DataLossError(
        absl::StrCat("rank 0 chose '", text, "' for ", is_gemm ? "products" : "attention"));
  }
  if (group.rank() != 0) return *std::move(choice);
  choice->description = Describe(trial, what, config, *choice);
  choice->rates = std::move(trial.rates);
  if (!trial.note.empty()) {
    choice->note = absl::StrCat("the trial of ", is_gemm ? "products " : "attention ", trial.note,
                                file.empty() ? "" : " (", file, file.empty() ? "" : ")");
  }
  return *std::move(choice);
}

}  // namespace weft::train
